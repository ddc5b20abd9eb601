"""A recording stores a channel's messages in durable logs, which any number of readers can read.

A recorder finishes (FIN) a message only after the message's row is durable.  Needs the extra ``recording``; object
stores also need the extra ``spark-storage``.  This module itself does not import Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_lite.recording.recording import Recording

__all__ = ["Recording"]


def __getattr__(name: str) -> Any:
    """Import a name at its first use.  Raises MissingExtra if pyarrow is not installed."""
    if name != "Recording":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gnsq_lite.errors import MissingExtra

    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtra("gnsq_lite.recording", "recording", "pyarrow") from error
    from gnsq_lite.recording.recording import Recording

    return Recording
