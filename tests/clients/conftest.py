"""Starts `glim serve` with the built-in model, on a free port and with two keys, once for all tests; ends it by SIGTERM."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import anthropic
import openai
import pytest

KEYS = ["sk-first-key", "sk-second-key"]
# Loading takes a second; a busy machine gets more.
START_SECONDS = 120
DRAIN_SECONDS = 60


@dataclass
class Server:
    """A running server."""

    url: str
    key: str
    log: list

    def get(self, path):
        """The body and the status of a GET without a key."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as response:
                return response.read().decode(), response.status
        except urllib.error.HTTPError as error:
            return error.read().decode(), error.code

    def gauge(self, name):
        """A metric's value, summed over its labels."""
        text, _ = self.get("/metrics")
        found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"{name} is not in /metrics"
        return sum(float(value) for value in found)


def until(what, seconds=30):
    """Waits until `what()` is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# for the tests\n" + "\n".join(KEYS) + "\n")
    command = [os.environ["GLIM"], "serve", "--json", "--port", "0", "--api-key-file", str(keys)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = []
    # A pipe that nobody empties would stop the server.
    reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
    reader.start()
    said = process.stdout.readline()
    assert said, "the server ended:\n" + "".join(log)
    running = Server("http://" + json.loads(said)["address"], KEYS[0], log)
    until(lambda: running.get("/ready")[1] == 200, START_SECONDS)
    yield running
    process.send_signal(signal.SIGTERM)
    code = process.wait(DRAIN_SECONDS)
    reader.join(DRAIN_SECONDS)
    assert code == 0, "after SIGTERM:\n" + "".join(log)
    assert "panicked" not in "".join(log)


@pytest.fixture(scope="session")
def client(server):
    """OpenAI's client. It must not hide an error by asking again."""
    return openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0)


@pytest.fixture(scope="session")
def claude(server):
    """Anthropic's client, which sends its key as `x-api-key`."""
    return anthropic.Anthropic(base_url=server.url, api_key=KEYS[1], max_retries=0)
