#!/usr/bin/env python3
"""Load on a running server: many streaming clients that often hang up, beside somebody who asks for /health.

What has to hold (and what makes the exit code 0): no answer but 200 and 429 and no broken stream, memory flat, no request left in the
engine afterwards, the 99th percentile of /health under 10 ms. Needs nothing but Python 3.9; speaks HTTP/1.1 over asyncio streams.

    python3 tests/load/load.py --url http://127.0.0.1:8000 --clients 64 --seconds 120

Prints one JSON object. Memory is the server's own `process_resident_memory_bytes`, read all through the run: flat is when the median of the
last quarter is at most --memory-growth above the median of the third (the first half warms up: each block of the cache costs memory
only once it has been written). The curve is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

HEALTH_EVERY = 0.05  # seconds
METRICS_EVERY = 1.0
HEALTH_LIMIT_MS = 10.0
CONNECT_LIMIT = 10.0
ANSWER_LIMIT = 300.0  # an answer that takes longer is stuck
SETTLE_LIMIT = 30.0  # for the last cancelled request to leave the engine

WORDS = "sea stone river light winter bread seven garden north letter song iron apple glass morning road".split()


@dataclass
class Figures:
    """What was seen."""

    statuses: Counter = field(default_factory=Counter)
    ends: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    tokens: int = 0

    def fault(self, what: str) -> None:
        if len(self.faults) < 20:
            self.faults.append(what)
        self.ends["fault"] += 1


class Connection:
    """One connection, one request."""

    def __init__(self, url: str, key: str | None):
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.key = key
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        opening = asyncio.open_connection(self.host, self.port)
        self.reader, self.writer = await asyncio.wait_for(opening, CONNECT_LIMIT)

    async def send(self, method: str, path: str, body: bytes = b"", keep: bool = False) -> None:
        head = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", f"Content-Length: {len(body)}"]
        head.append("Connection: keep-alive" if keep else "Connection: close")
        if body:
            head.append("Content-Type: application/json")
        if self.key:
            head.append(f"Authorization: Bearer {self.key}")
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        line = (await self.reader.readline()).split()
        if len(line) < 2:
            raise ConnectionError("no status line")
        headers = {}
        while (raw := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = raw.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(line[1]), headers

    async def chunks(self, headers: dict[str, str]):
        """The body in parts as they come."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while True:
                size = int((await self.reader.readline()).split(b";")[0], 16)
                data = await self.reader.readexactly(size)
                await self.reader.readline()
                if not size:
                    return
                yield data
        elif "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
        else:
            while data := await self.reader.read(65536):
                yield data

    async def body(self, headers: dict[str, str]) -> bytes:
        return b"".join([part async for part in self.chunks(headers)])

    def close(self) -> None:
        self.writer.close()


async def get(url: str, path: str, key: str | None = None) -> tuple[int, bytes]:
    connection = Connection(url, key)
    await connection.open()
    try:
        await connection.send("GET", path)
        status, headers = await connection.head()
        return status, await connection.body(headers)
    finally:
        connection.close()


def samples(text: str) -> dict[str, float]:
    """All samples of an exposition, by name and labels as they stand."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def total(metrics: dict[str, float], name: str) -> float:
    found = [value for key, value in metrics.items() if key == name or key.startswith(name + "{")]
    if not found:
        raise KeyError(f"/metrics has no {name}")
    return sum(found)


async def metrics(url: str) -> dict[str, float]:
    status, body = await get(url, "/metrics")
    if status != 200:
        raise ConnectionError(f"/metrics: {status}")
    return samples(body.decode())


def request(rng: random.Random, args: argparse.Namespace) -> dict:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, args.prompt_words)))
    shared = "You are a short-spoken assistant. " * rng.randint(0, 3)
    body = {
        "messages": [{"role": "system", "content": shared}, {"role": "user", "content": f"Say something of: {words}"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": rng.randint(1, args.max_tokens),
        "temperature": rng.choice([0, 0.7, 1]),
        "seed": rng.randrange(1 << 31),
    }
    if not shared:
        body["messages"].pop(0)
    if args.model:
        body["model"] = args.model
    return body


async def ask(rng: random.Random, args: argparse.Namespace, seen: Figures) -> None:
    """One streamed answer; every second one is hung up on: before it begins, in its prompt, or between tokens."""
    connection = Connection(args.url, args.api_key)
    await connection.open()
    cancel = rng.choice(["soon", "later", "tokens"]) if rng.random() < args.cancel else None
    patience = {"soon": rng.uniform(0, 0.02), "later": rng.uniform(0, 2)}.get(cancel)
    tokens_wanted = rng.randint(1, 8) if cancel == "tokens" else None
    try:
        began = time.perf_counter()
        await connection.send("POST", "/v1/chat/completions", json.dumps(request(rng, args)).encode())
        answer = stream(connection, began, tokens_wanted, seen)
        end = await asyncio.wait_for(answer, patience if patience is not None else ANSWER_LIMIT)
        seen.ends[end] += 1
        if end == "429":
            await asyncio.sleep(rng.uniform(0.05, 0.3))
    except asyncio.TimeoutError:
        if patience is None:
            seen.fault(f"no end after {ANSWER_LIMIT:.0f} s")
        else:
            seen.ends["cancelled"] += 1
    finally:
        connection.close()


async def stream(connection: Connection, began: float, tokens_wanted: int | None, seen: Figures) -> str:
    status, headers = await connection.head()
    seen.statuses[str(status)] += 1
    if status != 200:
        body = await connection.body(headers)
        if status == 429:
            if "retry-after" not in headers:
                seen.fault("429 without Retry-After")
            return "429"
        seen.fault(f"{status}: {body[:200]!r}")
        return "refused"
    pending, tokens, last, finish, done = b"", 0, began, None, False
    async for part in connection.chunks(headers):
        pending += part
        while b"\n\n" in pending:
            event, _, pending = pending.partition(b"\n\n")
            data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
            if not data:
                continue  # a comment that keeps the connection alive
            if data == b"[DONE]":
                done = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                seen.fault(f"error in the stream: {str(chunk['error'])[:200]}")
                return "error"
            for choice in chunk.get("choices", []):
                finish = choice.get("finish_reason") or finish
                delta = choice.get("delta", {})
                if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")):
                    now = time.perf_counter()
                    (seen.gaps if tokens else seen.ttft).append(now - last)
                    last, tokens = now, tokens + 1
                    seen.tokens += 1
                    if tokens == tokens_wanted:
                        return "cancelled"
    if not done or finish is None:
        seen.fault(f"the stream broke off after {tokens} pieces (finish_reason {finish})")
        return "broken"
    return finish


async def client(number: int, args: argparse.Namespace, until: float, seen: Figures) -> None:
    rng = random.Random(args.seed * 1000 + number)
    while time.perf_counter() < until:
        try:
            await ask(rng, args, seen)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError) as error:
            seen.fault(f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.1)


async def watch_health(args: argparse.Namespace) -> dict:
    """Asks on one connection, as a kubelet with keep-alive does."""
    times, faults, connection = [], [], None
    until = time.perf_counter() + args.seconds
    while time.perf_counter() < until:
        due = time.perf_counter() + HEALTH_EVERY
        try:
            if connection is None:
                connection = Connection(args.url, None)
                await connection.open()
            began = time.perf_counter()
            await connection.send("GET", "/health", keep=True)
            status, headers = await connection.head()
            await connection.body(headers)
            times.append(time.perf_counter() - began)
            if status != 200:
                faults.append(f"/health: {status}")
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            faults.append(f"/health: {type(error).__name__}: {error}")
            connection = None
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return {"times": times, "faults": faults}


async def watch_health_elsewhere(args: argparse.Namespace, seen: Figures) -> None:
    """In a process of its own: the clients here would be measured too."""
    command = [sys.executable, __file__, "--watch-health", "--url", args.url, "--seconds", str(args.seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    result = json.loads(output)
    seen.health = result["times"]
    for fault in result["faults"]:
        seen.fault(fault)


async def watch_memory(args: argparse.Namespace, began: float, until: float, seen: Figures) -> None:
    while time.perf_counter() < until:
        try:
            now = await metrics(args.url)
            seen.memory.append((time.perf_counter() - began, total(now, "process_resident_memory_bytes")))
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            seen.fault(f"/metrics: {type(error).__name__}: {error}")
        await asyncio.sleep(METRICS_EVERY)


async def settle(url: str) -> tuple[dict[str, float], float]:
    """Waits for an idle engine; what it says then, and how long that took."""
    began = time.perf_counter()
    while True:
        now = await metrics(url)
        busy = total(now, "vllm:num_requests_running") + total(now, "vllm:num_requests_waiting")
        took = time.perf_counter() - began
        if not busy or took > SETTLE_LIMIT:
            return now, took
        await asyncio.sleep(0.2)


def spread(values: list[float], scale: float = 1000.0) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * scale, 3)
    return {"n": len(ordered), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": round(ordered[-1] * scale, 3)}


def memory_growth(memory: list[tuple[float, float]], seconds: float) -> float | None:
    early = [size for at, size in memory if seconds * 0.5 <= at < seconds * 0.75]
    late = [size for at, size in memory if at >= seconds * 0.75]
    if not early or not late or statistics.median(early) == 0:
        return None
    return statistics.median(late) / statistics.median(early) - 1


async def run(args: argparse.Namespace) -> dict:
    seen = Figures()
    before = await metrics(args.url)
    began = time.perf_counter()
    until = began + args.seconds
    clients = [client(number, args, until, seen) for number in range(args.clients)]
    await asyncio.gather(*clients, watch_health_elsewhere(args, seen), watch_memory(args, began, until, seen))
    took = time.perf_counter() - began
    after, settled = await settle(args.url)

    def grown(name: str) -> float:
        return total(after, name) - total(before, name)

    growth = memory_growth(seen.memory, args.seconds)
    health = spread(seen.health)
    left = {
        "running": total(after, "vllm:num_requests_running"),
        "waiting": total(after, "vllm:num_requests_waiting"),
        "kv_cache_usage": total(after, "vllm:kv_cache_usage_perc"),
    }
    states = ("queued", "prefill", "decode")
    cancelled = [(key, value) for key, value in after.items() if key.startswith("glim:cancelled_total{")]
    ended = {state: value for state in states for key, value in cancelled if f'state="{state}"' in key}
    checks = {
        "no_fault": not seen.ends["fault"],
        "only_200_and_429": set(seen.statuses) <= {"200", "429"},
        "counters_back_to_zero": not any(left.values()),
        "memory_flat": growth is not None and growth <= args.memory_growth,
        "health_p99_under_10_ms": health is not None and health["p99"] < HEALTH_LIMIT_MS,
    }
    return {
        "ok": all(checks.values()),
        "checks": checks,
        "clients": args.clients,
        "seconds": round(took, 1),
        "statuses": dict(seen.statuses),
        "ends": dict(seen.ends),
        "faults": seen.faults,
        "pieces_per_second": round(seen.tokens / took, 1),
        "generation_tokens": grown("vllm:generation_tokens_total"),
        "steps": grown("glim:steps_total"),
        "preemptions": grown("vllm:num_preemptions_total"),
        "cancelled_by_state": ended,
        "ttft_ms": spread(seen.ttft),
        "gap_ms": spread(seen.gaps),
        "health_ms": health,
        "memory_mib": {
            "first": round(seen.memory[0][1] / 2**20, 1) if seen.memory else None,
            "most": round(max(size for _, size in seen.memory) / 2**20, 1) if seen.memory else None,
            "last": round(seen.memory[-1][1] / 2**20, 1) if seen.memory else None,
            "growth": None if growth is None else round(growth, 4),
            "curve": [round(size / 2**20, 1) for _, size in seen.memory[:: max(1, len(seen.memory) // 16)]],
        },
        "left_in_the_engine": left,
        "settled_after_s": round(settled, 2),
        "open_fds": {"before": total(before, "process_open_fds"), "after": total(after, "process_open_fds")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=200)
    parser.add_argument("--cancel", type=float, default=0.5, help="share of the answers that are hung up on")
    parser.add_argument("--memory-growth", type=float, default=0.02)
    parser.add_argument("--model", help="name to ask for; the server's default without it")
    parser.add_argument("--api-key")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--watch-health", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch_health:
        print(json.dumps(asyncio.run(watch_health(args))))
        return 0
    result = asyncio.run(run(args))
    print(json.dumps(result, indent=1))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
