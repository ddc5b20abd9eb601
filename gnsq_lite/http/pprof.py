"""Go's profiles, which nsqd and nsqlookupd both serve below /debug/pprof."""

from __future__ import annotations

import math

from gnsq_lite.errors import OptionError
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.option_fields import check_choice

#: What can be asked for; "" is the index.
PROFILES = ("", "cmdline", "symbol", "profile", "heap", "goroutine", "block", "threadcreate")


def get_profile(client: HTTPClient, name: str, seconds: float | None, debug: int | None) -> bytes:
    """Return a profile of nsqd or nsqlookupd.  Raises OptionError for one they do not have."""
    check_choice("name", name, *PROFILES)
    if seconds is None and name == "profile":
        seconds = 30.0
    if seconds is not None and seconds >= client.options.http_timeout:
        raise OptionError("seconds", seconds, f"must be less than http_timeout ({client.options.http_timeout:g})")
    duration = None if seconds is None else math.ceil(seconds)
    return client.get(f"/debug/pprof/{name}", {"seconds": duration, "debug": debug}).body
