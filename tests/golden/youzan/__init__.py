"""Reading the golden files; nothing of the library is used."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Return (type, data) of each whole frame in *data*."""
    found, at = [], 0
    while at + 8 <= len(data) and (end := at + 4 + int.from_bytes(data[at : at + 4], "big")) <= len(data):
        found.append((int.from_bytes(data[at + 4 : at + 8], "big"), data[at + 8 : end]))
        at = end
    return found


@dataclass(frozen=True)
class Conversation:
    """What was sent to the leader of *topic*/*partition* (or, where *other*, to another node) and what came back."""

    name: str
    topic: str
    partition: int
    other: bool
    sent: list[bytes]
    received: bytes
    closed: bool

    def frames(self) -> list[tuple[int, bytes]]:
        """Return (type, data) of each frame that came."""
        return frames_of(self.received)


def conversation(name: str) -> Conversation:
    lines = (HERE / f"{name}.hex").read_text().splitlines()
    to = next(line for line in lines if line.startswith("# to: "))[6:]
    topic, _, partition = to.lstrip("!").partition("/")
    sent = [ast.literal_eval(line[4:]) for line in lines if line.startswith("#   b")]
    closed = next(line for line in lines if line.startswith("# received")).endswith("closed:")
    received = bytes.fromhex("".join(line for line in lines if not line.startswith("#")))
    return Conversation(name, topic, int(partition), to.startswith("!"), sent, received, closed)


def answer(name: str) -> Any:
    """A captured HTTP answer: path, accept, status, kind, body."""
    return json.loads((HERE / f"{name}.json").read_text())
