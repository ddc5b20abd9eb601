"""``gnsq-lite topics | channels | nodes``: what the nsqlookupds know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from rich.table import Table

from gnsq_lite.cli import flags
from gnsq_lite.cli.output import console, echo, errors
from gnsq_lite.errors import HTTPError
from gnsq_lite.http import LookupdClient

T = TypeVar("T")


def ask_all(lookupds: tuple[str, ...], ask: Callable[[LookupdClient], Iterable[T]]) -> list[T]:
    """Return the answers of every nsqlookupd, doubles removed; one that fails is told of.  Raises where all fail."""
    found: dict[Any, T] = {}
    failed: HTTPError | None = None
    answered = False
    for url in flags.lookupd_urls(lookupds):
        try:
            with LookupdClient(url) as client:
                for item in ask(client):
                    found.setdefault(str(item), item)
            answered = True
        except HTTPError as error:
            failed = error
            errors.print(f"gnsq-lite: {error}", markup=False)
    if failed is not None and not answered:
        raise failed
    return list(found.values())


def show(title: str, columns: list[str], rows: list[list[str]], as_json: bool) -> None:
    """Print a table; off a terminal one line a row, tabs between; with *as_json* a JSON list of objects."""
    if as_json:
        echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
    elif not console.is_terminal:
        for row in rows:
            echo("\t".join(row))
    else:
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)


@click.command("topics")
@click.option("--lookupd-http-address", "lookupds", multiple=True, metavar="HOST:PORT")
@click.option("--json", "as_json", is_flag=True)
def topics(lookupds: tuple[str, ...], as_json: bool) -> int:
    """List the topics that the nsqlookupds know."""
    show("topics", ["topic"], [[t] for t in sorted(ask_all(lookupds, LookupdClient.topics))], as_json)
    return 0


@click.command("channels")
@click.argument("topic")
@click.option("--lookupd-http-address", "lookupds", multiple=True, metavar="HOST:PORT")
@click.option("--json", "as_json", is_flag=True)
def channels(topic: str, lookupds: tuple[str, ...], as_json: bool) -> int:
    """List the channels of TOPIC."""
    found = sorted(ask_all(lookupds, lambda client: client.channels(topic)))
    show(f"channels of {topic}", ["channel"], [[c] for c in found], as_json)
    return 0


@click.command("nodes")
@click.option("--lookupd-http-address", "lookupds", multiple=True, metavar="HOST:PORT")
@click.option("--json", "as_json", is_flag=True)
def nodes(lookupds: tuple[str, ...], as_json: bool) -> int:
    """List the nsqds that the nsqlookupds know."""
    rows = [
        [
            f"{node.broadcast_address}:{node.tcp_port}",
            f"{node.broadcast_address}:{node.http_port}",
            node.version,
            ", ".join(node.topics),
        ]
        for node in ask_all(lookupds, LookupdClient.nodes)
    ]
    show("nsqds", ["tcp", "http", "version", "topics"], sorted(rows), as_json)
    return 0
