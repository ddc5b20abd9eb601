"""docs/http.rst says what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from gnsq_lite import errors
from gnsq_lite.http import HTTPClient, LookupdClient, NsqdClient
from gnsq_lite.http.youzan_admin import LOOKUPD_CALLS, NSQD_CALLS
from gnsq_lite.options import HTTPOptions, LookupOptions

PAGE = (Path(__file__).parents[3] / "docs" / "http.rst").read_text(encoding="utf-8")


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}


def test_every_method_is_listed_and_every_listed_method_exists() -> None:
    methods = (public(NsqdClient) | public(LookupdClient)) - (public(HTTPClient) - {"ping"})
    section = PAGE.partition("Every method")[2].partition("Youzan's administration calls")[0]
    assert set(re.findall(r"``(\w+)``", section)) == methods


def test_every_administration_call_is_listed_with_its_parameters() -> None:
    section = PAGE.partition("Youzan's administration calls\n---")[2]
    for title, calls in (("of nsqd ", NSQD_CALLS), ("of nsqlookupd ", LOOKUPD_CALLS)):
        rows = re.findall(r"(?m)^``(\w+)`` +(.*)$", section.partition(title)[2].partition("\n\n")[0])
        assert {name: parameters.strip("\\") for name, parameters in rows} == {
            name: " ".join([*call.required.split(), *(f"[{each}]" for each in call.optional.split())])
            for name, call in calls.items()
        }


def test_every_error_is_listed() -> None:
    kinds = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.HTTPError)
    }
    assert set(re.findall(r"``(HTTP\w*Error|HTTP\w+)``", PAGE)) >= kinds - {"HTTPError"}


def test_the_defaults_are_those_of_the_options() -> None:
    shown = {"http_timeout": "10 s", "http_connect_timeout": "5 s", "http_max_body": "64 MiB"}
    shown |= {"lookupd_poll_interval": "60 s", "lookupd_poll_jitter": "0.3", "lookupd_timeout": "5 s"}
    shown |= {"lookupd_max_body": "16 MiB"}
    defaults = {f.name: f.default for kind in (HTTPOptions, LookupOptions) for f in dataclasses.fields(kind)}
    for name, text in shown.items():
        assert re.search(rf"``{name}``\s+\({re.escape(text)}\)", PAGE), name
        value, _, unit = text.partition(" ")
        assert defaults[name] == float(value) * (1 << 20 if unit == "MiB" else 1), name
