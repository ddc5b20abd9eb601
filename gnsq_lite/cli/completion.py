"""Shell completion of ``--topic`` and ``--channel``, with the names that nsqlookupds or nsqds list."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from gnsq_lite.errors import NSQError
from gnsq_lite.keywords import url_list

if TYPE_CHECKING:
    from gnsq_lite.http import LookupdClient, NsqdClient

#: Time limit for each server in seconds.  It is short, because the user waits for the completion.
_TIMEOUT = 1.0


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics that start with *incomplete*.  After a server fails, no further server is queried."""
    return _names(
        ctx, lambda lookupd: lookupd.topics(), lambda nsqd: (t.topic_name for t in nsqd.stats().topics), incomplete
    )


def channel_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the channels, starting with *incomplete*, of the topics given earlier on the command line."""
    given = ctx.params.get("topics") or ctx.params.get("topic") or ()
    topics = [given] if isinstance(given, str) else list(given)

    def of_nsqd(nsqd: NsqdClient) -> Iterable[str]:
        return (c.channel_name for t in nsqd.stats().topics if t.topic_name in topics for c in t.channels)

    return _names(ctx, lambda lookupd: (c for t in topics for c in lookupd.channels(t)), of_nsqd, incomplete)


def _names(
    ctx: click.Context,
    of_lookupd: Callable[[LookupdClient], Iterable[str]],
    of_nsqd: Callable[[NsqdClient], Iterable[str]],
    incomplete: str,
) -> list[str]:
    from gnsq_lite.http import LookupdClient, NsqdClient  # imported here, so that commands start faster

    found: set[str] = set()
    nsqds = ctx.params.get("nsqd_http") or ()
    lookupds = ctx.params.get("lookupds") or os.environ.get("NSQ_LOOKUPD_HTTP_ADDRESSES") or "127.0.0.1:4161"
    try:
        for address in nsqds:
            with NsqdClient(address, http_timeout=_TIMEOUT) as nsqd:
                found.update(of_nsqd(nsqd))
        for url in () if nsqds else url_list(lookupds):
            with LookupdClient(url, http_timeout=_TIMEOUT) as lookupd:
                found.update(of_lookupd(lookupd))
    except NSQError:  # a completion cannot show an error
        pass
    return sorted(name for name in found if name.startswith(incomplete))
