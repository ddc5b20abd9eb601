"""Recorded bytes of real servers.  The head of each file describes how it was recorded."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "golden" / "nsqd"
NAMES = sorted(path.stem for path in FOLDER.glob("*.hex"))


def golden(name: str) -> bytes:
    """Return the bytes in ``tests/golden/nsqd/<name>.hex``."""
    lines = (FOLDER / f"{name}.hex").read_text(encoding="ascii").splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))
