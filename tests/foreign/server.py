"""A program ``nsqd``, or ``nsqlookupd``, which is the embedded broker: it takes the real one's flags and logs alike.

``python server.py NAME FLAGS``; the runner puts a script on PATH that does so under each name.
"""

from __future__ import annotations

import platform
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from gevent.server import StreamServer

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.foreign, wherever this is run

from gnsq_lite.broker import Broker
from gnsq_lite.broker.options import NSQD_VERSION
from gnsq_lite.cli.broker import broker_of, command
from tests.foreign.registrations import Registration, serve_nsqd

#: Flags of the Go programs that need no value.
_SWITCHES = {"--tls-required", "--statsd-exclude-ephemeral", "--statsd-mem-stats", "--verbose", "--worker-id"}


def pairs(given: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (flag, value) for each flag of a Go program: with two dashes; a switch without a value is "true"."""
    words = iter(given)
    for word in words:
        flag, _, value = re.sub(r"^--?", "--", word).partition("=")
        is_switch = flag in _SWITCHES or any(flag in option.opts and option.is_flag for option in _options())
        yield flag, value or ("true" if is_switch else next(words))


def _options() -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def arguments(name: str, given: list[str]) -> list[str]:
    """Return the arguments of ``gnsq-lite broker`` for those of the Go program *name*; drop flags that it lacks."""
    known = {flag: each for each in _options() for flag in (*each.opts, *each.secondary_opts)}
    found = ["--no-lookupd" if name == "nsqd" else "--nsqds=0"]
    for flag, value in pairs(given):
        own = (
            f"--nsqlookupd{flag[1:]}" if name == "nsqlookupd" and flag in ("--tcp-address", "--http-address") else flag
        )
        option = known.get(own)
        if option is not None and option.is_flag:
            found.append(own if value == "true" else own.replace("--", "--no-", 1))
        elif option is not None:
            found.append(f"{own}={value}")
    return found


def listen_for_nsqds(broker: Broker, address: str) -> int:
    """Take registrations of nsqds at *address* for the broker's nsqlookupd; return the port."""
    host, _, port = address.rpartition(":")
    db = broker._lookupds[0].db

    def start() -> int:
        server = StreamServer((host, int(port)), lambda sock, peer: serve_nsqd(db, sock, peer))
        server.start()
        return int(server.server_port)

    return broker.call(start)


def log_addresses(broker: Broker, given: dict[str, str], name: str) -> None:
    """Log where it listens, as the real programs do."""
    listening = [("TCP", node.nsqd_tcp_address) for node in broker.nodes]
    listening += [("HTTP", node.http_address) for node in broker.nodes]
    if broker.options.tls_cert:
        listening += [("HTTPS", node.https_address) for node in broker.nodes]
    if name == "nsqlookupd":
        port = listen_for_nsqds(broker, given.get("--tcp-address", "127.0.0.1:4160"))
        listening += [("TCP", f"{broker.host}:{port}"), ("HTTP", broker.lookupd_http_address)]
    elif "--lookupd-tcp-address" in given:
        broker.call(lambda: Registration(given["--lookupd-tcp-address"], broker))
    for kind, address in listening:
        print(f"[broker] INFO: {kind}: listening on {address}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the program that the first argument names until SIGINT or SIGTERM."""
    name, given = sys.argv[1], sys.argv[2:]
    if given in (["--version"], ["-version"]):
        print(f"{name} v{NSQD_VERSION} (built w/go{platform.python_version()})")
        return
    flags = command.make_context(name, arguments(name, given)).params
    del flags["as_json"]
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # also in the broker's thread
    with broker_of(flags) as broker:
        log_addresses(broker, dict(pairs(given)), name)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
