"""NSQ for Spark.  ``format("nsq")`` is a source and a sink, and ``format("nsq_log")`` is a source.

``format("nsq")`` finishes (FIN) a message only after the message is durable in a recording.  A restarted query reads on
from the recording, and a batch that runs again has the same rows.  So a sink that skips repeated batch ids stores each
message once.  Any other sink stores each message at least once.

Needs the extra ``spark`` (``pip install ".[spark]"`` in a checkout) and Java 17.  This module itself imports neither
Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsq_lite.spark.launch import session
    from gnsq_lite.spark.listener import ProgressListener
    from gnsq_lite.spark.nsq_log.source import NsqLogDataSource
    from gnsq_lite.spark.parsing import parse_json, with_dead_letters
    from gnsq_lite.spark.recorders import record
    from gnsq_lite.spark.restart import run_query
    from gnsq_lite.spark.source import NsqDataSource

__all__ = [
    "NsqDataSource",
    "NsqLogDataSource",
    "ProgressListener",
    "parse_json",
    "record",
    "run_query",
    "session",
    "with_dead_letters",
]

_HOMES = {
    "NsqDataSource": "gnsq_lite.spark.source",
    "NsqLogDataSource": "gnsq_lite.spark.nsq_log.source",
    "ProgressListener": "gnsq_lite.spark.listener",
    "parse_json": "gnsq_lite.spark.parsing",
    "record": "gnsq_lite.spark.recorders",
    "run_query": "gnsq_lite.spark.restart",
    "session": "gnsq_lite.spark.launch",
    "with_dead_letters": "gnsq_lite.spark.parsing",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use.  Raises MissingExtra or OldSpark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from gnsq_lite.spark.compat import require_pyspark

    require_pyspark()
    return getattr(import_module(_HOMES[name]), name)
