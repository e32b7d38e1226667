"""`/v1/messages` through Anthropic's Python client."""

import json

import anthropic
import pytest
from world import MODEL, SUM, SUM_ANSWER, SUM_REASONING, WEATHER, WEATHER_SCHEMA

# The client no longer has a parameter for the temperature; the protocol does.
GREEDY = {"model": MODEL, "max_tokens": 300, "extra_body": {"temperature": 0}}
THINKING = {"type": "enabled", "budget_tokens": 1024}
TOOL = {"name": "get_weather", "description": "The weather in a city", "input_schema": WEATHER_SCHEMA}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_sum_is_answered_with_its_thinking_before_it(claude):
    message = claude.messages.create(messages=SUM, thinking=THINKING, **GREEDY)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == SUM_REASONING
    assert text_of(message) == SUM_ANSWER
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert message.usage.output_tokens > 0


def test_thinking_can_be_disabled(claude):
    message = claude.messages.create(messages=SUM, thinking={"type": "disabled"}, **GREEDY)
    assert [block.type for block in message.content] == ["text"]
    assert text_of(message) == "27 + 58 = 85."


def test_a_stream_joins_to_the_whole_message(claude):
    whole = claude.messages.create(messages=SUM, thinking=THINKING, **GREEDY)
    with claude.messages.stream(messages=SUM, thinking=THINKING, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert [(block.type, getattr(block, "text", None), getattr(block, "thinking", None)) for block in final.content] == [
        (block.type, getattr(block, "text", None), getattr(block, "thinking", None)) for block in whole.content
    ]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_is_used_and_its_result_too(claude):
    message = claude.messages.create(messages=WEATHER, tools=[TOOL], **GREEDY)
    assert message.stop_reason == "tool_use"
    [use] = [block for block in message.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("get_weather", {"city": "Oslo"})
    turns = [
        *WEATHER,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": '{"weather": "rain"}'}]},
    ]
    after = claude.messages.create(messages=turns, tools=[TOOL], **GREEDY)
    assert after.stop_reason == "end_turn"
    assert "Oslo" in text_of(after)

    with claude.messages.stream(messages=WEATHER, tools=[TOOL], **GREEDY) as stream:
        parts = "".join(event.delta.partial_json for event in stream if event.type == "content_block_delta" and event.delta.type == "input_json_delta")
    assert json.loads(parts) == use.input


def test_tokens_are_counted_as_they_are_billed(claude):
    system = "Be brief."
    count = claude.messages.count_tokens(model=MODEL, system=system, messages=SUM, thinking=THINKING).input_tokens
    usage = claude.messages.create(system=system, messages=SUM, thinking=THINKING, **GREEDY).usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def test_a_message_ends_at_a_stop_sequence_or_its_length(claude):
    poem = [{"role": "user", "content": "Write a short poem."}]
    stopped = claude.messages.create(messages=poem, stop_sequences=["night"], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "night")
    assert "night" not in text_of(stopped)
    short = claude.messages.create(messages=poem, **{**GREEDY, "max_tokens": 3})
    assert short.stop_reason == "max_tokens"


def test_what_is_wrong_is_said_in_the_protocols_form(server, claude):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(messages=[], **GREEDY)
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(messages=SUM, **{**GREEDY, "model": "claude"})
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="sk-wrong-key", max_retries=0).messages.create(messages=SUM, **GREEDY)
