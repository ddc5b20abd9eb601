"""The pages of Go's net/http/pprof, which nsqd and nsqlookupd serve: there is no Go here, so each profile is empty."""

from __future__ import annotations

import gzip
import html
import sys

import gevent

from gnsq_lite.broker.commands import quoted
from gnsq_lite.broker.http import App, Handler, HTTPFailure, Page, Request

_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_NO_SNIFF = ("X-Content-Type-Options", "nosniff")
_PROFILES = ("block", "goroutine", "heap", "threadcreate")


def add_pprof(app: App, index: str) -> None:
    """Serve the profiles, listed at *index*."""
    app.add("GET", index, _index)
    app.add("GET", "/debug/pprof/cmdline", lambda request: Page("\0".join(sys.argv).encode(), (_TEXT, _NO_SNIFF)))
    for method in ("GET", "POST"):
        app.add(method, "/debug/pprof/symbol", lambda request: Page(b"num_symbols: 1\n", (_TEXT, _NO_SNIFF)))
    app.add("GET", "/debug/pprof/profile", _profile)
    for name in _PROFILES:
        app.add("GET", f"/debug/pprof/{name}", _named(name))


def add_debug(app: App) -> None:
    """Serve what nsqd has besides."""
    app.add("PUT", "/debug/setblockrate", _set_block_rate, plain=True)
    app.add("POST", "/debug/freememory", lambda request: None, plain=True)


def _index(request: Request) -> Page:
    rows = "".join(
        f"<tr><td>0</td><td><a href='{html.escape(name)}?debug=1'>{name}</a></td></tr>" for name in _PROFILES
    )
    page = f"<html>\n<head>\n<title>/debug/pprof/</title>\n</head>\n<body>\n<table>{rows}</table>\n</body>\n</html>\n"
    return Page(page.encode(), (("Content-Type", "text/html; charset=utf-8"), _NO_SNIFF))


def _named(name: str) -> Handler:
    def handle(request: Request) -> Page:
        if request.get("debug") not in ("", "0"):
            return Page(f"{name} profile: total 0\n".encode(), (_TEXT, _NO_SNIFF))
        return _empty(name)

    return handle


def _profile(request: Request) -> Page:
    """Wait as long as a profile of the processor would take, 30 seconds unless told."""
    seconds = request.get("seconds")
    gevent.sleep(int(seconds) if seconds.isascii() and seconds.isdigit() and int(seconds) else 30)
    return _empty("profile")


def _empty(name: str) -> Page:
    kinds = (("Content-Type", "application/octet-stream"), ("Content-Disposition", f'attachment; filename="{name}"'))
    return Page(gzip.compress(b"", mtime=0), (*kinds, _NO_SNIFF))


def _set_block_rate(request: Request) -> None:
    rate = request.get("rate")
    digits = rate[1:] if rate[:1] in ("+", "-") else rate
    if not digits.isascii() or not digits.isdigit():
        why = f"strconv.Atoi: parsing {quoted(rate.encode('utf-8', 'surrogateescape'))}: invalid syntax"
        raise HTTPFailure(400, f"invalid block rate : {why}")
