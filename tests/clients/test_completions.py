"""`/v1/completions`, `/v1/models` and the errors of both, through OpenAI's Python client."""

import openai
import pytest
from world import GREEDY, MODEL, SUM

ONCE = "Once upon a time"


def test_a_text_goes_on(client):
    answer = client.completions.create(prompt=ONCE, max_tokens=24, **GREEDY)
    [choice] = answer.choices
    assert answer.object == "text_completion"
    assert choice.text.startswith(", a ")
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 24


def test_sixteen_tokens_are_the_default(client):
    assert client.completions.create(prompt=ONCE, **GREEDY).usage.completion_tokens == 16


def test_a_stream_joins_to_the_whole_text(client):
    whole = client.completions.create(prompt=ONCE, max_tokens=24, **GREEDY).choices[0]
    chunks = list(client.completions.create(prompt=ONCE, max_tokens=24, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_several_prompts_and_several_choices_come_in_order(client):
    answer = client.completions.create(prompt=[ONCE, "The river"], n=2, max_tokens=4, echo=True, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1] and texts[0].startswith(ONCE)
    assert texts[2] == texts[3] and texts[2].startswith("The river")


def test_a_prompt_may_be_token_ids(client):
    text = client.completions.create(prompt=ONCE, max_tokens=8, **GREEDY).choices[0].text
    ids = client.post("/../tokenize", body={"prompt": ONCE}, cast_to=object)["tokens"]
    assert client.completions.create(prompt=ids, max_tokens=8, **GREEDY).choices[0].text == text
    assert client.completions.create(prompt=[ids], max_tokens=8, **GREEDY).choices[0].text == text


def test_logprobs_lie_at_their_offsets(client):
    choice = client.completions.create(prompt=ONCE, max_tokens=6, logprobs=2, **GREEDY).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset[1] - logprobs.text_offset[0] == len(logprobs.tokens[0])


def test_the_model_is_listed(client):
    [model] = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert model.max_model_len > 0
    assert client.models.retrieve(MODEL).id == MODEL


def test_what_is_wrong_is_said_with_its_place(server, client):
    def refused(kind, **more):
        with pytest.raises(kind) as error:
            client.chat.completions.create(**{"messages": SUM, **GREEDY, **more})
        return error.value

    unknown = refused(openai.NotFoundError, model="gpt-4")
    assert unknown.code == "model_not_found"
    hot = refused(openai.BadRequestError, temperature=9)
    assert (hot.type, hot.param) == ("invalid_request_error", "temperature")
    assert refused(openai.BadRequestError, messages=[]).param == "messages"
    assert refused(openai.BadRequestError, messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    assert "logit_bias" in refused(openai.BadRequestError, logit_bias={"4096": 1}).param
    assert refused(openai.BadRequestError, top_logprobs=2).param == "top_logprobs"
    long = refused(openai.BadRequestError, messages=[{"role": "user", "content": "red stone " * 5000}])
    assert long.code == "context_length_exceeded"
    assert str(client.models.retrieve(MODEL).max_model_len) in long.message


def test_a_key_is_needed(server):
    for key in ["sk-wrong-key", "sk-first-ke", "sk-first-keyy"]:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0).models.list()
    openai.OpenAI(base_url=server.url + "/v1", api_key="sk-second-key").models.list()
