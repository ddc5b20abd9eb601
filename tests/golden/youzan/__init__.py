"""Reading the golden files; nothing of the library is used."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


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
        """(type, data) of every frame that came."""
        found, at = [], 0
        while at < len(self.received):
            end = at + 4 + int.from_bytes(self.received[at : at + 4], "big")
            found.append((int.from_bytes(self.received[at + 4 : at + 8], "big"), self.received[at + 8 : end]))
            at = end
        return found


def conversation(name: str) -> Conversation:
    lines = (HERE / f"{name}.hex").read_text().splitlines()
    to = next(line for line in lines if line.startswith("# to: "))[6:]
    topic, _, partition = to.lstrip("!").partition("/")
    sent = [ast.literal_eval(line[4:]) for line in lines if line.startswith("#   b")]
    closed = next(line for line in lines if line.startswith("# received")).endswith("closed:")
    received = bytes.fromhex("".join(line for line in lines if not line.startswith("#")))
    return Conversation(name, topic, int(partition), to.startswith("!"), sent, received, closed)


def conversations() -> list[Conversation]:
    return [conversation(path.stem) for path in sorted(HERE.glob("*.hex"))]


def answer(name: str) -> Any:
    """A captured HTTP answer: path, accept, status, kind, body."""
    return json.loads((HERE / f"{name}.json").read_text())
