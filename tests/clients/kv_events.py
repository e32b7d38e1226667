#!/usr/bin/env python3
"""Reads the events of a running server's prefix cache as vLLM's consumers do: pyzmq, and msgspec with the fields of vLLM's structs.

    pip install pyzmq msgspec
    glim serve --kv-events 'tcp://*:5557' --kv-events-replay 'tcp://*:5558' ...
    python3 tests/clients/kv_events.py --url http://127.0.0.1:8000 --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558

Asks the server for completions, and checks: three frames, numbers without gaps, blocks whose tokens and hashes fit, every parent known, and
that a replay from 0 (by DEALER, and the first batch by REQ) begins with AllBlocksCleared and holds what came live, byte for byte. With
--arrays the server was told to write arrays. Prints one JSON object; exits 1 if something does not hold.
"""

import argparse
import json
import sys
import time
import urllib.request
from typing import Any, Optional, Union

import msgspec
import zmq

Hash = Union[int, bytes]


def events(arrays: bool):
    """vLLM's structs; before 0.26 they were arrays."""
    options = {"tag": True, "array_like": arrays, "omit_defaults": True}

    class BlockStored(msgspec.Struct, **options):
        block_hashes: list[Hash]
        parent_block_hash: Optional[Hash]
        token_ids: list[int]
        block_size: int
        lora_id: Optional[int]
        medium: Optional[str]
        lora_name: Optional[str]
        extra_keys: Optional[list[Optional[tuple[Any, ...]]]] = None
        group_idx: Optional[int] = None
        kv_cache_spec_kind: Optional[str] = None
        kv_cache_spec_sliding_window: Optional[int] = None

    class BlockRemoved(msgspec.Struct, **options):
        block_hashes: list[Hash]
        medium: Optional[str]
        group_idx: Optional[int] = None

    class AllBlocksCleared(msgspec.Struct, **options):
        pass

    class Batch(msgspec.Struct, array_like=True):
        ts: float
        events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
        data_parallel_rank: Optional[int] = None

    return BlockStored, BlockRemoved, AllBlocksCleared, msgspec.msgpack.Decoder(Batch)


def ask(url: str, prompt: str, key: Optional[str]) -> dict:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 24, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["usage"]


def live(socket: zmq.Socket, quiet: int) -> list[tuple[bytes, int, bytes]]:
    """What comes until nothing has come for so many milliseconds."""
    batches = []
    while socket.poll(quiet):
        topic, number, payload = socket.recv_multipart()
        batches.append((topic, int.from_bytes(number, "big"), payload))
    return batches


def replay(context: zmq.Context, endpoint: str, first: int) -> list[tuple[int, bytes]]:
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart([b"", first.to_bytes(8, "big")])
    batches = []
    while socket.poll(10_000):
        empty, number, payload = socket.recv_multipart()
        assert empty == b"", empty
        if not payload:
            assert int.from_bytes(number, "big", signed=True) == -1, number
            socket.close(0)
            return batches
        batches.append((int.from_bytes(number, "big"), payload))
    raise TimeoutError("no end of the replay")


def replay_first(context: zmq.Context, endpoint: str) -> tuple[int, bytes]:
    """A REQ takes one answer to a request."""
    socket = context.socket(zmq.REQ)
    socket.connect(endpoint)
    socket.send((0).to_bytes(8, "big"))
    assert socket.poll(10_000), "no answer to REQ"
    number, payload = socket.recv_multipart()
    socket.close(0)
    return int.from_bytes(number, "big"), payload


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--events", default="tcp://127.0.0.1:5557")
    parser.add_argument("--replay", default="tcp://127.0.0.1:5558")
    parser.add_argument("--topic", default="", help="prefix to subscribe to")
    parser.add_argument("--arrays", action="store_true")
    parser.add_argument("--api-key")
    args = parser.parse_args()

    stored_type, removed_type, cleared_type, decoder = events(args.arrays)
    context = zmq.Context.instance()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, args.topic.encode())
    socket.connect(args.events)
    time.sleep(0.5)  # the wish has to arrive before the first batch

    text = "The lighthouse keeper wrote one line in his book each evening. " * 12
    usages = [ask(args.url, text + question, args.api_key) for question in ("Why?", "Why?", "Who reads it?")]
    batches = live(socket, 1000)

    faults = []
    if not batches:
        faults.append("no batch came")
    numbers = [number for _, number, _ in batches]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
        faults.append(f"numbers have gaps: {numbers}")

    again = replay(context, args.replay, 0)
    if [(number, payload) for _, number, payload in batches] != [batch for batch in again if batch[0] in set(numbers)]:
        faults.append("a replayed batch differs from the live one")
    first = decoder.decode(again[0][1])
    if again[0][0] != 0 or not isinstance(first.events[0], cleared_type):
        faults.append(f"the first batch is not AllBlocksCleared: {again[0][0]} {first}")
    if replay_first(context, args.replay) != again[0]:
        faults.append("REQ got another first batch")

    known: set[Hash] = set()
    counts = {"stored": 0, "removed": 0, "cleared": 0, "blocks": 0, "tokens": 0}
    for number, payload in again:
        batch = decoder.decode(payload)
        if abs(batch.ts - time.time()) > 3600 or batch.data_parallel_rank != 0:
            faults.append(f"batch {number}: time {batch.ts}, rank {batch.data_parallel_rank}")
        for event in batch.events:
            if isinstance(event, cleared_type):
                counts["cleared"] += 1
                known.clear()
            elif isinstance(event, removed_type):
                counts["removed"] += 1
                known.difference_update(event.block_hashes)
            else:
                counts["stored"] += 1
                counts["blocks"] += len(event.block_hashes)
                counts["tokens"] += len(event.token_ids)
                if len(event.token_ids) != len(event.block_hashes) * event.block_size:
                    faults.append(f"batch {number}: {len(event.token_ids)} tokens in {len(event.block_hashes)} blocks of {event.block_size}")
                if event.parent_block_hash is not None and event.parent_block_hash not in known:
                    faults.append(f"batch {number}: the parent is not known")
                known.update(event.block_hashes)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    if counts["stored"] == 0 or cached[1] == 0:
        faults.append(f"nothing was stored or found: {counts}, cached {cached}")

    print(json.dumps({"ok": not faults, "faults": faults, "batches": len(again), **counts, "cached_tokens": cached}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
