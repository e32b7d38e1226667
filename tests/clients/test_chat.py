"""`/v1/chat/completions` through OpenAI's Python client."""

import asyncio
import json
from typing import Annotated, Literal

import openai
import pytest
from conftest import until
from pydantic import BaseModel, Field
from world import GREEDY, POEM, SUM, SUM_ANSWER, SUM_REASONING, WEATHER, WEATHER_TOOL


def reasoning_of(choice):
    """It is left out if there is none."""
    return getattr(choice.message, "reasoning_content", "")


def test_a_sum_is_answered_with_its_reasoning_beside_it(client):
    answer = client.chat.completions.create(messages=SUM, **GREEDY)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == SUM_ANSWER
    assert choice.message.reasoning_content == SUM_REASONING
    assert choice.message.reasoning == SUM_REASONING
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"


@pytest.mark.parametrize("messages", [SUM, POEM])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 7}])
def test_a_stream_joins_to_the_whole_answer(client, messages, sampling):
    request = {"model": "tiny-glm5", "messages": messages, **sampling}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **request))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == reasoning_of(whole.choices[0])
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_may_come_with_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(messages=SUM, stream=True, stream_options=options, **GREEDY))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_thinking_can_be_turned_off(client):
    body = {"chat_template_kwargs": {"enable_thinking": False}}
    message = client.chat.completions.create(messages=SUM, extra_body=body, **GREEDY).choices[0].message
    assert message.content == "27 + 58 = 85."
    assert not hasattr(message, "reasoning_content")


def test_a_tool_is_called_and_its_result_is_used(client):
    request = {"messages": list(WEATHER), "tools": [WEATHER_TOOL], **GREEDY}
    choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    request["messages"] += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "rain", "temperature": 9}'},
    ]
    after = client.chat.completions.create(**request).choices[0]
    assert after.finish_reason == "stop"
    assert "Oslo" in after.message.content


def test_a_call_streams_to_the_same_call(client):
    whole = client.chat.completions.create(messages=WEATHER, tools=[WEATHER_TOOL], **GREEDY).choices[0].message.tool_calls[0]
    with client.chat.completions.stream(messages=WEATHER, tools=[WEATHER_TOOL], **GREEDY) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == (whole.function.name, whole.function.arguments)
    assert any(event.type == "tool_calls.function.arguments.done" for event in events)


def test_a_call_can_be_required_named_or_forbidden(client):
    request = {"messages": SUM, "tools": [WEATHER_TOOL], **GREEDY}
    required = client.chat.completions.create(tool_choice="required", **request).choices[0]
    assert required.finish_reason == "tool_calls"
    assert required.message.tool_calls[0].function.name == "get_weather"
    assert isinstance(json.loads(required.message.tool_calls[0].function.arguments)["city"], str)

    named = {"type": "function", "function": {"name": "get_weather"}}
    [call] = client.chat.completions.create(tool_choice=named, **request).choices[0].message.tool_calls
    assert call.function.name == "get_weather"

    request["messages"] = WEATHER
    none = client.chat.completions.create(tool_choice="none", **request).choices[0]
    assert none.message.tool_calls is None
    assert none.finish_reason != "tool_calls"


class Colour(BaseModel):
    """Without a text or a list of any length: so small a model might not come to its end."""

    name: Literal["red", "green", "dark \"blue\""]
    warm: bool
    shade: Annotated[int, Field(ge=1, le=40)]


def test_an_answer_has_the_form_of_a_schema(client):
    messages = [{"role": "user", "content": "Name a colour."}]
    parsed = client.chat.completions.parse(messages=messages, response_format=Colour, **GREEDY)
    choice = parsed.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Colour)

    with client.chat.completions.stream(messages=messages, response_format=Colour, **GREEDY) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.parsed == choice.message.parsed


def test_an_answer_has_the_form_of_an_object_a_choice_a_pattern(client):
    def ask(**more):
        answer = client.chat.completions.create(messages=POEM, max_tokens=300, **more, **GREEDY)
        return answer.choices[0].message.content

    text = ask(response_format={"type": "json_object"}, stop=None)
    assert text.lstrip().startswith("{")
    assert ask(extra_body={"structured_outputs": {"choice": ["red", "green"]}}) in ("red", "green")
    assert ask(extra_body={"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}})[3] == "-"
    assert ask(extra_body={"guided_choice": ["blue"]}) == "blue"


@pytest.mark.parametrize(
    "schema",
    [{"type": "nothing"}, {"type": "string", "pattern": "(?<=a)b"}, {"$ref": "#/nowhere"}],
)
def test_a_schema_that_cannot_be_enforced_is_refused(client, schema):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(messages=SUM, response_format=form, **GREEDY)
    assert error.value.type == "invalid_request_error"
    assert "response_format" in error.value.param


def test_choices_differ_and_a_seed_repeats_them(client):
    def ask():
        answer = client.chat.completions.create(model="tiny-glm5", messages=POEM, n=3, seed=11, temperature=1.5, max_tokens=24)
        assert answer.usage.completion_tokens <= 3 * 24
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [(choice.message.content, reasoning_of(choice)) for choice in answer.choices]

    first = ask()
    assert len(set(first)) > 1
    assert ask() == first


def test_logprobs_are_of_the_tokens_of_the_answer(client):
    choice = client.chat.completions.create(messages=SUM, logprobs=True, top_logprobs=3, **GREEDY).choices[0]
    content = choice.logprobs.content
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        # Greedy: what was drawn was the likeliest.
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob


def test_an_answer_ends_before_a_stop_string_and_at_its_length(client):
    whole = client.chat.completions.create(messages=POEM, **GREEDY).choices[0].message.content
    stopped = client.chat.completions.create(messages=POEM, stop=["night"], **GREEDY).choices[0]
    assert stopped.message.content == whole[: whole.index("night")]
    assert stopped.finish_reason == "stop"
    assert stopped.stop_reason == "night"
    short = client.chat.completions.create(messages=POEM, max_completion_tokens=3, **GREEDY)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 3


def test_a_prompt_that_came_before_is_taken_from_the_cache(client):
    story = " ".join(f"Tom has {n} red stones and {n + 1} blue ones." for n in range(20))
    messages = [{"role": "user", "content": story + " What is 27 + 58?"}]
    first = client.chat.completions.create(messages=messages, **GREEDY)
    second = client.chat.completions.create(messages=messages, **GREEDY)
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    assert second.choices[0].message == first.choices[0].message
    salted = client.chat.completions.create(messages=messages, extra_body={"cache_salt": "other"}, **GREEDY)
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    assert salted.choices[0].message == first.choices[0].message


def test_requests_at_the_same_time_answer_as_alone(server, client):
    alone = client.chat.completions.create(messages=SUM, **GREEDY).choices[0].message

    async def together():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as many:
            sums = [many.chat.completions.create(messages=SUM, **GREEDY) for _ in range(6)]
            poems = [many.chat.completions.create(messages=POEM, **GREEDY) for _ in range(6)]
            return await asyncio.gather(*sums, *poems)

    answers = asyncio.run(together())
    assert all(answer.choices[0].message == alone for answer in answers[:6])
    assert len({answer.choices[0].message.content for answer in answers[6:]}) == 1


def test_a_client_that_goes_away_frees_its_place(server, client):
    stream = client.chat.completions.create(
        messages=POEM, stream=True, max_tokens=3000, extra_body={"ignore_eos": True}, **GREEDY
    )
    next(iter(stream))
    stream.close()
    until(lambda: server.gauge("vllm:num_requests_running") == 0 and server.gauge("vllm:num_requests_waiting") == 0)
    until(lambda: server.gauge("vllm:kv_cache_usage_perc") == 0)
