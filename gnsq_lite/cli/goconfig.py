"""``--consumer-opt`` and ``--producer-opt``: go-nsq's options as keywords of a Reader or a Writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from gnsq_lite.cli.goflags import seconds, truth
from gnsq_lite.options import BackoffOptions, TLSOptions


def _whole(text: str) -> int:
    return int(text, 10)


def _tls_version(text: str) -> str:
    if text not in ("ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3"):
        raise ValueError(f"{text!r} is none of ssl3.0, tls1.0, tls1.1, tls1.2, tls1.3")
    return "TLSv1.3" if text == "tls1.3" else "TLSv1.2"


#: go-nsq's name -> (our keyword, what reads it); for Readers and Writers alike.
_CONNECTION: dict[str, tuple[str, Callable[[str], Any]]] = {
    "dial_timeout": ("connect_timeout", seconds),
    "write_timeout": ("write_timeout", seconds),
    "client_id": ("client_id", str),
    "hostname": ("hostname", str),
    "user_agent": ("user_agent", str),
    "heartbeat_interval": ("heartbeat_interval", seconds),
    "deflate_level": ("deflate_level", _whole),
    "auth_secret": ("auth_secret", str),
}
#: For Readers only: a Writer has no use for them, and go-nsq's Producer none either.
_CONSUMER: dict[str, tuple[str, Callable[[str], Any]]] = {
    "lookupd_poll_interval": ("lookupd_poll_interval", seconds),
    "lookupd_poll_jitter": ("lookupd_poll_jitter", float),
    "lookupd_poll_timeout": ("lookupd_timeout", seconds),
    "max_requeue_delay": ("max_requeue_delay", seconds),
    "default_requeue_delay": ("requeue_delay", seconds),
    "max_attempts": ("max_attempts", _whole),
    "low_rdy_idle_timeout": ("rdy_idle_timeout", seconds),
    "low_rdy_timeout": ("rdy_low_timeout", seconds),
    "sample_rate": ("sample_rate", _whole),
    "output_buffer_size": ("output_buffer_size", _whole),
    "output_buffer_timeout": ("output_buffer_timeout", seconds),
    "msg_timeout": ("msg_timeout", seconds),
}
#: Several of go-nsq's options make one of ours.
_BACKOFF: dict[str, tuple[str, Callable[[str], Any]]] = {
    "backoff_strategy": ("strategy", lambda text: text.replace("_", "-") or "exponential"),
    "max_backoff_duration": ("longest", seconds),
    "backoff_multiplier": ("unit", seconds),
}
_TLS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "tls_root_ca_file": ("ca_file", str),
    "tls_cert": ("cert_file", str),
    "tls_key": ("key_file", str),
    "tls_insecure_skip_verify": ("verify", lambda text: not truth(text)),
    "tls_min_version": ("minimum_version", _tls_version),
}
_SWITCHES = ("tls_v1", "deflate", "snappy")
#: What is ours to decide: the flags of the same meaning win, as in nsq's utilities.
_OURS = {
    "max_in_flight": "--max-in-flight says it",
    "read_timeout": "a connection ends when two heartbeats did not come",
    "rdy_redistribute_interval": "RDY is given anew when something changes",
    "skip_lookupd_authorization": "the AUTH secret is never sent to nsqlookupd",
}


def keywords(given: Iterable[str], *, flag: str) -> tuple[dict[str, Any], list[str]]:
    """Return (keywords, notes on what has no effect here) of ``name,value`` texts; the last of a name counts.

    Raises click.UsageError; no value is shown that may be a secret.
    """
    is_consumer = flag == "--consumer-opt"
    found: dict[str, Any] = {}
    backoff: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    switches: dict[str, bool] = {}
    notes = []
    for text in given:
        name, comma, value = text.partition(",")
        name, value = name.strip().replace("-", "_"), value if comma else "true"
        try:
            if name in _SWITCHES:
                switches[name] = truth(value)
            elif name in _OURS:
                notes.append(f"{flag} {name} has no effect: {_OURS[name]}")
            elif name in _BACKOFF or name in _CONSUMER:
                table, into = (_BACKOFF, backoff) if name in _BACKOFF else (_CONSUMER, found)
                key, read = table[name]
                if is_consumer:
                    into[key] = read(value)
                else:
                    notes.append(f"{flag} {name} has no effect: it is a consumer's")
            elif name in _TLS or name in _CONNECTION:
                table, into = (_TLS, tls) if name in _TLS else (_CONNECTION, found)
                key, read = table[name]
                into[key] = read(value)
            else:
                raise click.UsageError(f"{flag} {name!r} is not an option of this program")
        except ValueError as error:
            shown = "its value cannot be understood" if name == "auth_secret" else str(error)
            raise click.UsageError(f"{flag} {name}: {shown}") from error
    if backoff:
        found["backoff"] = BackoffOptions(**backoff)
    if tls or switches.get("tls_v1"):
        found["tls"] = TLSOptions(**tls) if switches.get("tls_v1", True) else None
    for name in ("deflate", "snappy"):
        if switches.get(name):
            found["compression"] = name
    return found, notes
