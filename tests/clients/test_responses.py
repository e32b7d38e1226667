"""`/v1/responses`, without storage, through OpenAI's Python client."""

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel
from world import GREEDY, SUM, SUM_ANSWER, SUM_REASONING, WEATHER_SCHEMA

TOOL = {"type": "function", "name": "get_weather", "description": "The weather in a city", "parameters": WEATHER_SCHEMA}


def test_a_text_is_answered(client):
    response = client.responses.create(input="What is 27 + 58?", **GREEDY)
    assert response.status == "completed"
    assert response.output_text == SUM_ANSWER
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert SUM_REASONING in json.dumps(response.output[0].model_dump())
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens > 0


def test_instructions_and_items_are_a_conversation(client):
    response = client.responses.create(instructions="Be brief.", input=SUM, **GREEDY)
    assert response.output_text == SUM_ANSWER


def test_a_stream_joins_to_the_whole_response(client):
    whole = client.responses.create(input="Write a short poem.", **GREEDY)
    with client.responses.stream(input="Write a short poem.", **GREEDY) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == final.output_text
    numbers = [event.sequence_number for event in events if getattr(event, "sequence_number", None) is not None]
    assert numbers == sorted(numbers)


def test_a_function_is_called_and_its_output_is_used(client):
    items = [{"role": "user", "content": "What is the weather in Oslo?"}]
    response = client.responses.create(input=items, tools=[TOOL], **GREEDY)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    items += [item.model_dump(exclude_none=True) for item in response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": '{"weather": "rain"}'})
    after = client.responses.create(input=items, tools=[TOOL], **GREEDY)
    assert "Oslo" in after.output_text

    events = list(client.responses.create(input="What is the weather in Oslo?", tools=[TOOL], stream=True, **GREEDY))
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert arguments == call.arguments


class Colour(BaseModel):
    name: Literal["red", "green"]
    warm: bool


def test_a_response_has_the_form_of_a_schema(client):
    response = client.responses.parse(input="Name a colour.", text_format=Colour, **GREEDY)
    assert isinstance(response.output_parsed, Colour)


def test_what_needs_storage_is_refused(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(input="And then?", previous_response_id="resp_1", **GREEDY)
    assert error.value.param == "previous_response_id"
