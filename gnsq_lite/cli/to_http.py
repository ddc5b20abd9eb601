"""``gnsq-lite to-http``: call a URL for each message, as nsq_to_http does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gnsq_lite import Reader
from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import topic_names
from gnsq_lite.cli.goflags import Duration, go_command, option
from gnsq_lite.cli.hostpool import MODES, Pool, Timings
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.serving import serve
from gnsq_lite.http.hook import Caller
from gnsq_lite.version import __version__


@go_command(
    "to-http", versioned=True, example="to-http --topic clicks --post http://127.0.0.1:8080/in --max-in-flight 100"
)
@flags.addresses
@option("--topic", required=True, shell_complete=topic_names, help="Topic to read.")
@flags.channel("nsq_to_http")
@option("--post", "posts", multiple=True, metavar="URL", help="POST each body to URL; may be repeated.")
@option("--get", "gets", multiple=True, metavar="URL", help="GET URL, %s replaced by the body; may be repeated.")
@option(
    "--mode",
    type=click.Choice([*MODES, "multicast"]),
    default="hostpool",
    show_default=True,
    help="In turn; in turn without those that failed; the fast ones more often; or all.",
)
@option("--sample", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Part of the messages to send.")
@option("-n", "concurrency", type=click.IntRange(1, 1000), default=100, show_default=True, help="Calls at once.")
@option("--content-type", default="application/octet-stream", show_default=True, help="Of --post.")
@option("--header", "headers", multiple=True, metavar="'Name: value'", help="Further header; may be repeated.")
@flags.http_timeouts(request=20.0)
@flags.max_in_flight
@flags.consumer_opts
@option("--max-attempts", type=click.IntRange(0), help="Give up after so many; 0, the default: never.")
@option("--requeue-delay", type=Duration(), help="Before a failed call is made again.  [default: 5s]")
@flags.status_every("calls")
@flags.security
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    topic: str,
    channel: str,
    posts: tuple[str, ...],
    gets: tuple[str, ...],
    concurrency: int,
    max_in_flight: int,
    max_attempts: int | None,
    requeue_delay: float | None,
    **options: Any,
) -> int:
    """Call a URL for each message; a message is finished after a 2xx answer and requeued after any other."""
    if not posts and not gets:
        raise click.UsageError("give --post or --get")
    if any(url.count("%s") != 1 for url in gets):
        raise click.UsageError("a --get URL needs one %s, where the body goes")
    http = flags.http_options(options)
    mode, every = options.pop("mode"), options.pop("status_every")
    caller = Caller(
        posts,
        gets,
        chooser=None if mode == "multicast" else Pool(len(posts) + len(gets), mode),
        sample=options.pop("sample"),
        headers=_headers(options.pop("content_type"), options.pop("headers")),
        connect_timeout=http.http_connect_timeout,
        request_timeout=http.http_timeout,
        concurrency=concurrency,
        on_call=_telling(posts + gets, every),
    )
    given = {"max_attempts": max_attempts, "requeue_delay": requeue_delay}
    settings = {
        **flags.of_reader(options, max_attempts=0, requeue_delay=5.0),
        **{name: value for name, value in given.items() if value is not None},
    }
    reader = Reader(
        topic,
        channel,
        lambda message: caller.send(message.body),
        handler_pool="thread",
        concurrency=min(concurrency, max_in_flight),
        max_in_flight=max_in_flight,
        **flags.where(nsqds, lookupds),
        **settings,
    )
    try:
        serve([reader], drain=http.http_timeout)
    finally:
        errors.print(f"{caller.sent} messages sent, {caller.skipped} sampled out", markup=False)
    return 0


def _headers(content_type: str, given: tuple[str, ...]) -> dict[str, str]:
    named = {"Content-Type": content_type, "User-Agent": f"gnsq_lite/{__version__}"}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"--header {header!r} is not 'Name: value'")
        named[name.strip()] = value.strip()
    return named


def _telling(urls: tuple[str, ...], every: int) -> Callable[[str, float], None]:
    """Return what counts calls and says how long they took: all of them and, where there are several, each URL's."""

    def say(line: str) -> None:
        errors.print(line, markup=False)

    timings = {"": Timings(every, "aggregate", say)}
    if len(urls) > 1:
        timings.update({url: Timings(every, url, say) for url in urls})

    def told(url: str, seconds: float) -> None:
        if url in timings:
            timings[url].add(seconds)

    return told
