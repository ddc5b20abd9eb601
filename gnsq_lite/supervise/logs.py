"""Formats log records as text or JSON, with the fields of ``extra``.

Messages and fields are cut after 4 KiB, and tracebacks after 64 KiB.  The text format escapes control characters and
indents the lines of a traceback, so that a text from the network cannot forge a log line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal

from gnsq_lite import stacks
from gnsq_lite.errors import NSQError
from gnsq_lite.text import cut, printable

#: Maximum number of characters of a traceback.
_MAX_TRACEBACK = 65536

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that the caller passed as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _traceback(exc_info: Any) -> str:
    return "" if exc_info[1] is None else stacks.of_error(exc_info[1]).removesuffix("\n")


def _stamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


class JSONFormatter(logging.Formatter):
    """Formats a record as a JSON object with time, level, logger, message, process, ``extra`` and the exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage()),
            "process": self._process,
        }
        for name, value in extra_of(record).items():
            fields.setdefault(name, cut(value) if isinstance(value, str) else value)
        if record.exc_info:
            fields["exception"] = cut(_traceback(record.exc_info), _MAX_TRACEBACK)
        if record.stack_info:
            fields["stack"] = cut(record.stack_info, _MAX_TRACEBACK)
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as ``time LEVEL logger[process] message key=value``, followed by the traceback, if any."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = f"{_stamp(record)} {record.levelname} {record.name}[{self._process}] {printable(record.getMessage())}"
        line += "".join(printable(f" {name}={value}") for name, value in extra_of(record).items())
        for part in (_traceback(record.exc_info) if record.exc_info else "", record.stack_info or ""):
            line += "".join(f"\n  {printable(each)}" for each in cut(part, _MAX_TRACEBACK).splitlines())
        return line


class BriefFormatter(TextFormatter):
    """TextFormatter that omits the traceback of an NSQError or OSError, such as the error of a full disk."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (NSQError, OSError)):
            return super().format(record)
        line = super().format(logging.makeLogRecord({**vars(record), "exc_info": None}))
        text = printable(str(error))
        return line if text in line else f"{line}: {type(error).__name__}: {text}"


_FORMATTERS = {"text": TextFormatter, "json": JSONFormatter, "brief": BriefFormatter}


class MessageFilter(logging.Filter):
    """Adds topic, channel, message_id and attempt to the records that a handler's own code logs.

    For a configuration of the program's own, add this filter to a logging handler, for example in Django's LOGGING.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record does not have, and return True."""
        calls = sys.modules.get("gnsq_lite.consume.calls")  # a process that has not imported it runs no handler
        message = None if calls is None else calls.current_message()
        if message is not None:
            id = message.id.decode("ascii", "replace")
            named = {"topic": message.topic, "channel": message.channel, "message_id": id, "attempt": message.attempts}
            for name, value in named.items():
                vars(record).setdefault(name, value)
        return True


def configure(format: Literal["text", "json", "brief"], level: str, process: str) -> None:
    """Write all log records of this process to standard error.  *process* is the process's number or "main"."""
    handler = logging.StreamHandler()
    handler.addFilter(MessageFilter())
    handler.setFormatter(_FORMATTERS[format](process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
