"""``gnsq-lite to-http``: call a URL for each message, as nsq_to_http does."""

from __future__ import annotations

from typing import Any

import click

from gnsq_lite import Reader
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.serving import serve
from gnsq_lite.http.hook import Caller
from gnsq_lite.version import __version__


@click.command("to-http")
@flags.addresses
@click.option("--topic", required=True, help="Topic to read.")
@click.option("--channel", default="nsq_to_http", show_default=True)
@click.option("--post", "posts", multiple=True, metavar="URL", help="POST each body to URL; may be repeated.")
@click.option("--get", "gets", multiple=True, metavar="URL", help="GET URL, %s replaced by the body; may be repeated.")
@click.option("--mode", type=click.Choice(["round-robin", "multicast"]), default="round-robin", show_default=True)
@click.option(
    "--sample", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Part of the messages to send."
)
@click.option("-n", "concurrency", type=click.IntRange(1, 1000), default=16, show_default=True, help="Calls at once.")
@click.option("--content-type", default="application/octet-stream", show_default=True)
@click.option("--header", "headers", multiple=True, metavar="'Name: value'", help="Further header; may be repeated.")
@click.option("--http-client-connect-timeout", type=click.FloatRange(0.01), default=2.0, show_default=True)
@click.option("--http-client-request-timeout", type=click.FloatRange(0.01), default=20.0, show_default=True)
@click.option("--max-in-flight", type=click.IntRange(1), default=200, show_default=True)
@click.option("--max-attempts", type=click.IntRange(0), default=0, show_default=True, help="0: try for ever.")
@click.option("--requeue-delay", type=click.FloatRange(0), default=5.0, show_default=True)
@flags.security
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    topic: str,
    channel: str,
    posts: tuple[str, ...],
    gets: tuple[str, ...],
    mode: str,
    sample: float,
    concurrency: int,
    content_type: str,
    headers: tuple[str, ...],
    http_client_connect_timeout: float,
    http_client_request_timeout: float,
    max_in_flight: int,
    max_attempts: int,
    requeue_delay: float,
    **options: Any,
) -> int:
    """Call a URL for each message; a message is finished after a 2xx answer and requeued after any other."""
    if not posts and not gets:
        raise click.UsageError("give --post or --get")
    if any("%s" not in url for url in gets):
        raise click.UsageError("a --get URL needs %s where the body goes")
    named = {"Content-Type": content_type, "User-Agent": f"gnsq_lite/{__version__}"}
    for header in headers:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header {header!r} is not 'Name: value'")
        named[name.strip()] = value.strip()
    caller = Caller(
        posts,
        gets,
        mode=mode,
        sample=sample,
        headers=named,
        connect_timeout=http_client_connect_timeout,
        request_timeout=http_client_request_timeout,
        concurrency=concurrency,
    )
    reader = Reader(
        topic,
        channel,
        lambda message: caller.send(message.body),
        handler_pool="thread",
        concurrency=min(concurrency, max_in_flight),
        max_in_flight=max_in_flight,
        max_attempts=max_attempts,
        requeue_delay=requeue_delay,
        **flags.where(nsqds, lookupds),
        **flags.secured(options),
    )
    try:
        serve([reader], drain=http_client_request_timeout)
    finally:
        errors.print(f"{caller.sent} messages sent, {caller.skipped} sampled out", markup=False)
    return 0
