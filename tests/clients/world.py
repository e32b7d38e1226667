"""What the built-in model knows: questions whose greedy answers the tests rely on, and a tool that it calls."""

MODEL = "tiny-glm5"

SUM = [{"role": "user", "content": "What is 27 + 58?"}]
SUM_ANSWER = "85"
SUM_REASONING = "27 + 58: 20 + 50 = 70, 7 + 8 = 15, so 85."

POEM = [{"role": "user", "content": "Write a short poem."}]

WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": WEATHER_SCHEMA,
    },
}

GREEDY = {"model": MODEL, "temperature": 0}
