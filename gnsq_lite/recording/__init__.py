"""Recordings: durable logs of a channel, for any number of readers.

A recorder finishes (FIN) a message only after its row is durable.  Needs the extra ``recording``, and for object stores
``spark-storage`` as well.  This module itself does not import Arrow.
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
