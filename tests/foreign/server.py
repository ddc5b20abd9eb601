"""A program ``nsqd``, or ``nsqlookupd``, which is the embedded broker: it takes the real one's flags and logs alike.

``python server.py NAME FLAGS``; the runner puts a script on PATH that does so under each name.
"""

from __future__ import annotations

import platform
import re
import sys

from gnsq_lite.broker import Broker, run_forever
from gnsq_lite.broker.options import NSQD_VERSION
from gnsq_lite.cli.broker import broker_of, command


def arguments(name: str, given: list[str]) -> list[str]:
    """Return what ``gnsq-lite broker`` is told, for what the program *name* was told."""
    if name == "nsqd":
        return [*given, "--no-lookupd"]
    return [*(re.sub(r"^--?(tcp|http)-address", r"--nsqlookupd-\1-address", word) for word in given), "--nsqds=0"]


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
    run_forever(broker_of(flags), tell)


if __name__ == "__main__":
    main()
