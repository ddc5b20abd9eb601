"""A program ``nsqd``, or ``nsqlookupd``, which is the embedded broker: it takes the real one's flags and logs alike.

``python server.py NAME FLAGS``; the runner puts a script on PATH that does so under each name.
"""

from __future__ import annotations

import platform
import re
import signal
import sys

from gnsq_lite.broker import Broker
from gnsq_lite.broker.options import NSQD_VERSION
from gnsq_lite.cli.broker import broker_of, command

#: Flags of the Go programs that need no value.
_SWITCHES = {"--tls-required", "--statsd-exclude-ephemeral", "--statsd-mem-stats", "--verbose", "--worker-id"}


def arguments(name: str, given: list[str]) -> list[str]:
    """Return the arguments of ``gnsq-lite broker`` for those of the Go program *name*; drop flags that it lacks."""
    known = {flag: each for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    renamed = {} if name == "nsqd" else {f"--{one}-address": f"--nsqlookupd-{one}-address" for one in ("tcp", "http")}
    found = ["--no-lookupd" if name == "nsqd" else "--nsqds=0"]
    words = iter(given)
    for word in words:
        flag, _, value = re.sub(r"^--?", "--", word).partition("=")
        option = known.get(renamed.get(flag, flag))
        is_switch = flag in _SWITCHES or bool(getattr(option, "is_flag", False))
        value = value or ("true" if is_switch else next(words))
        if option is not None:
            flag = renamed.get(flag, flag)
            off = flag.replace("--", "--no-", 1)
            found.append(
                f"{flag}={value}" if not getattr(option, "is_flag", False) else flag if value == "true" else off
            )
    return found


def tell(broker: Broker) -> None:
    """Log where it listens, as the real programs do."""
    listening = [("TCP", node.nsqd_tcp_address) for node in broker.nodes]
    listening += [("HTTP", node.http_address) for node in broker.nodes]
    if broker.options.tls_cert:
        listening += [("HTTPS", node.https_address) for node in broker.nodes]
    for lookupd in broker.lookupds:
        listening += [("TCP", lookupd.tcp_address), ("HTTP", lookupd.http_address)]
    for kind, address in listening:
        print(f"[broker] INFO: {kind}: listening on {address}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the program that the first argument names until SIGTERM."""
    name, given = sys.argv[1], sys.argv[2:]
    if given in (["--version"], ["-version"]):
        print(f"{name} v{NSQD_VERSION} (built w/go{platform.python_version()})")
        return
    flags = command.make_context(name, arguments(name, given)).params
    del flags["as_json"]
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # also in the broker's thread
    with broker_of(flags) as broker:
        tell(broker)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
