"""``gnsq-lite broker``: the embedded nsqd and nsqlookupd on their own.  Flags are nsqd's; durations are seconds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gnsq_lite.broker import Broker, BrokerOptions
from gnsq_lite.cli.output import echo
from gnsq_lite.keywords import address_list
from gnsq_lite.net.runtime import Completion
from gnsq_lite.net.signals import until_signal

F = TypeVar("F", bound=Callable[..., Any])

#: Fields whose flag is given several times; nsqd's names for them are singular.
_REPEATED = {"auth_http_addresses": "auth-http-address", "lookupd_tcp_addresses": "lookupd-tcp-address"}


def broker_flags(function: F) -> F:
    """Add a flag for each field of BrokerOptions, under nsqd's name, with the field's default."""
    for spec in reversed(dataclasses.fields(BrokerOptions)):
        flag = "--" + _REPEATED.get(spec.name, spec.name.replace("_", "-"))
        default = spec.default
        if spec.name in _REPEATED:
            option = click.option(flag, spec.name, multiple=True, metavar="HOST:PORT")
        elif spec.name == "tls_required":
            choice = click.Choice(["false", "true", "tcp-https"])
            option = click.option(flag, spec.name, type=choice, default="false", show_default=True)
        elif isinstance(default, bool):
            option = click.option(f"{flag}/--no-{flag[2:]}", spec.name, default=default, show_default=True)
        else:
            option = click.option(flag, spec.name, type=type(default), default=default, show_default=True)
        function = option(function)
    return function


@click.command("broker")
@click.option("--tcp-address", default="127.0.0.1:4150", show_default=True, help="nsqd's TCP address; port 0: any.")
@click.option("--http-address", default="127.0.0.1:4151", show_default=True, help="nsqd's HTTP address.")
@click.option("--nsqlookupd-tcp-address", "lookupd_tcp", default="127.0.0.1:4160", show_default=True)
@click.option("--nsqlookupd-http-address", "lookupd_http", default="127.0.0.1:4161", show_default=True)
@click.option("--no-lookupd", is_flag=True, help="Run no nsqlookupd.")
@click.option("--nsqds", type=click.IntRange(1, 64), default=1, show_default=True, help="nsqds on successive ports.")
@click.option("--youzan", is_flag=True, help="Speak Youzan's NSQ: make topics at nsqlookupd with /topic/create.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as JSON.")
@broker_flags
def command(
    tcp_address: str,
    http_address: str,
    lookupd_tcp: str,
    lookupd_http: str,
    no_lookupd: bool,
    nsqds: int,
    youzan: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run an nsqd and an nsqlookupd in this process until Ctrl-C or SIGTERM.

    All messages are in memory and gone when it ends: for tests and demos, not for production.
    """
    options["tls_required"] = {"false": False, "true": True}.get(options["tls_required"], options["tls_required"])
    host, ports = _ports(tcp_address, http_address, lookupd_tcp, lookupd_http)
    broker = Broker(host=host, lookupd=not no_lookupd, nsqds=nsqds, youzan=youzan, **ports, **options)
    ended = Completion()
    with broker:
        listening = {
            "nsqd_tcp": broker.nsqd_tcp_addresses,
            "nsqd_http": [node.http_address for node in broker.nodes],
            "lookupd_http": broker.lookupd_http_addresses,
            "storage": "memory",
        }
        if as_json:
            echo(json.dumps(listening))
        else:
            for name, addresses in listening.items():
                echo(f"{name}: {addresses if isinstance(addresses, str) else ', '.join(addresses)}")
        try:
            until_signal(ended, lambda timeout=0.0: ended.settle())
        except KeyboardInterrupt:
            pass
    return 0


def _ports(tcp: str, http: str, lookupd_tcp: str, lookupd_http: str) -> tuple[str, dict[str, Any]]:
    named = {"tcp_port": tcp, "http_port": http, "lookupd_tcp_port": lookupd_tcp, "lookupd_http_port": lookupd_http}
    hosts: list[str] = []
    ports: dict[str, Any] = {}
    for name, text in named.items():
        host, _, port = text.rpartition(":")
        if port == "0":
            hosts.append(host)
            ports[name] = 0
            continue
        ((host, number),) = address_list(text, option=name.replace("_port", "_address"), default_port=0)
        hosts.append(host)
        ports[name] = number
    if len(set(hosts)) != 1:
        raise click.UsageError("all addresses must have the same host")
    return hosts[0] or "127.0.0.1", ports
