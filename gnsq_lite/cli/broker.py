"""``gnsq-lite broker``: run the embedded nsqd and nsqlookupd."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gnsq_lite.broker import Broker, BrokerOptions
from gnsq_lite.cli.output import echo
from gnsq_lite.cli.params import Duration
from gnsq_lite.cli.params import command as tool
from gnsq_lite.keywords import address_list
from gnsq_lite.net.signals import until_signal
from gnsq_lite.net.waiting import Completion

F = TypeVar("F", bound=Callable[..., Any])


def broker_flags(function: F) -> F:
    """Add a flag for each field of BrokerOptions.  A flag has nsqd's name and the field's default."""
    for spec in reversed(dataclasses.fields(BrokerOptions)):
        flag = "--auth-http-address" if spec.name == "auth" else "--" + spec.name.replace("_", "-")
        default, text = spec.default, spec.metadata["doc"]
        if spec.name == "auth":
            text = "Address or URL of the auth server; if given, clients must send AUTH."
            option = click.option(flag, spec.name, default="", metavar="HOST:PORT", help=text)
        elif spec.name == "tls_required":
            choice = click.Choice(["false", "true", "tcp-https"])
            option = click.option(flag, type=choice, default="false", show_default=True, help=text)
        elif isinstance(default, bool):
            option = click.option(f"{flag}/--no-{flag[2:]}", default=default, show_default=True, help=text)
        else:
            kind = Duration() if isinstance(default, float) else type(default)
            option = click.option(flag, type=kind, default=default, show_default=True, help=text)
        function = option(function)
    return function


@tool("broker", example="broker --tcp-address 127.0.0.1:4150")
@click.option(
    "--tcp-address", default="127.0.0.1:4150", show_default=True, help="nsqd's TCP address; port 0 picks a free port."
)
@click.option("--http-address", default="127.0.0.1:4151", show_default=True, help="nsqd's HTTP address.")
@click.option("--https-address", help="nsqd's HTTPS address, used with --tls-cert; default: a free port.")
@click.option(
    "--nsqlookupd-http-address",
    "lookupd_http",
    default="127.0.0.1:4161",
    show_default=True,
    help="nsqlookupd's HTTP address.",
)
@click.option("--no-lookupd", is_flag=True, help="Run no nsqlookupd.")
@click.option(
    "--nsqds", type=click.IntRange(0, 64), default=1, show_default=True, help="Number of nsqds, on successive ports."
)
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON.")
@broker_flags
def command(as_json: bool, **flags: Any) -> int:
    """Run an nsqd and an nsqlookupd in this process until Ctrl-C or SIGTERM.

    Messages are only in memory, and are lost at exit.  Use this broker for tests and demos, not in production.
    """
    broker = broker_of(flags)
    ended = Completion()
    with broker:
        listening = {
            "nsqd_tcp": broker.nsqd_tcp_addresses,
            "nsqd_http": [node.http_address for node in broker.nodes],
            "lookupd_http": broker.lookupd_http_addresses,
            "storage": "memory",
        }

        def print_addresses() -> None:
            if as_json:
                echo(json.dumps(listening))
                return
            for name, addresses in listening.items():
                echo(f"{name}: {addresses if isinstance(addresses, str) else ', '.join(addresses)}")

        until_signal(ended, lambda timeout=0.0: ended.settle(), print_addresses)
    return 0


def broker_of(flags: dict[str, Any]) -> Broker:
    """Return the broker that the command's *flags* describe."""
    addresses = {
        "tcp_port": flags.pop("tcp_address"),
        "http_port": flags.pop("http_address"),
        "https_port": flags.pop("https_address"),
        "lookupd_http_port": flags.pop("lookupd_http"),
    }
    if flags["no_lookupd"]:
        addresses["lookupd_http_port"] = None
    flags["tls_required"] = {"false": False, "true": True}.get(flags["tls_required"], flags["tls_required"])
    host, ports = _ports({name: address for name, address in addresses.items() if address})
    return Broker(host=host, lookupd=not flags.pop("no_lookupd"), **ports, **flags)


def _ports(addresses: dict[str, str]) -> tuple[str, dict[str, Any]]:
    hosts: set[str] = set()
    ports: dict[str, Any] = {}
    for name, text in addresses.items():
        host, _, port = text.rpartition(":")
        if port == "0":
            hosts.add(host)
            ports[name] = 0
            continue
        ((host, number),) = address_list(text, option=name.replace("_port", "_address"), default_port=0)
        hosts.add(host)
        ports[name] = number
    if len(hosts) != 1:
        raise click.UsageError("all addresses must have the same host")
    return hosts.pop() or "127.0.0.1", ports
