"""What `curl` sees: headers, bodies of errors, the stream's bytes."""

import json
import subprocess

import pytest
from world import SUM, SUM_ANSWER


@pytest.fixture(scope="session")
def curl(server):
    def run(path, *arguments, body=None, key=True):
        """The status, the headers in lower case and the body of a request."""
        command = ["curl", "--silent", "--show-error", "--max-time", "60", "--include", "--no-buffer", server.url + path, *arguments]
        if key:
            command += ["--header", f"Authorization: Bearer {server.key}"]
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            command += ["--header", "Content-Type: application/json", "--header", "Expect:", "--data-binary", "@-"]
            out = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        else:
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        head, _, rest = out.partition("\r\n\r\n") if "\r\n\r\n" in out else out.partition("\n\n")
        first, *lines = head.splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, rest

    return run


def test_a_question_is_answered(curl):
    status, headers, body = curl("/v1/chat/completions", body={"messages": SUM, "temperature": 0})
    assert status == 200
    assert headers["content-type"].startswith("application/json")
    assert json.loads(body)["choices"][0]["message"]["content"] == SUM_ANSWER


def test_a_stream_is_events_of_one_line_and_says_that_it_is_done(curl):
    status, headers, body = curl("/v1/chat/completions", body={"messages": SUM, "temperature": 0, "stream": True})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    events = [event for event in body.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == SUM_ANSWER


def test_a_request_keeps_its_id(curl):
    _, headers, _ = curl("/health", "--header", "x-request-id: my-id-7")
    assert headers["x-request-id"] == "my-id-7"
    _, headers, _ = curl("/health")
    assert headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "arguments", "body", "status"),
    [
        ("/v1/chat/completions", [], "{", 400),
        ("/v1/chat/completions", [], "[]", 400),
        ("/v1/chat/completions", [], '{"messages": 7}', 400),
        ("/v1/chat/completions", [], '{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        ("/v1/chat/completions", ["--request", "PUT"], "{}", 405),
        ("/v1/chat/completions", [], None, 405),
        ("/v1/embeddings", [], "{}", 404),
        ("/nothing", [], None, 404),
        ("/v1/chat/completions", [], " " * (51 << 20), 413),
    ],
)
def test_an_error_has_a_status_and_a_body_of_json(curl, path, arguments, body, status):
    found, headers, text = curl(path, *arguments, body=body)
    assert found == status, text
    error = json.loads(text)["error"]
    assert error["message"] and error["type"]
    assert set(error) >= {"message", "type", "param", "code"}


def test_probes_metrics_and_the_page_need_no_key_and_the_api_does(curl):
    for path in ["/health", "/ready", "/startup", "/metrics", "/", "/web/app.js", "/openapi.json"]:
        status, _, body = curl(path, key=False)
        assert status == 200 and body, path
    for path in ["/v1/models", "/version", "/info"]:
        status, _, body = curl(path, key=False)
        assert status == 401 and json.loads(body)["error"]["type"] == "authentication_error", path
    status, _, body = curl("/v1/messages", body={}, key=False)
    assert status == 401 and json.loads(body)["type"] == "error"


def test_the_server_says_what_it_is(curl):
    status, _, body = curl("/version")
    assert status == 200 and json.loads(body)["version"]
    status, _, body = curl("/info")
    assert status == 200 and "tiny-glm5" in body


def test_no_other_origin_is_let_in(curl):
    _, headers, _ = curl("/v1/models", "--header", "Origin: https://example.org")
    assert "access-control-allow-origin" not in headers


def test_tokens_go_there_and_back(curl):
    _, _, body = curl("/tokenize", body={"prompt": "Once upon a time"})
    tokens = json.loads(body)["tokens"]
    _, _, body = curl("/detokenize", body={"tokens": tokens})
    assert json.loads(body)["prompt"] == "Once upon a time"
    _, _, body = curl("/apply-template", body={"messages": SUM})
    assert "What is 27 + 58?" in json.loads(body)["prompt"]
