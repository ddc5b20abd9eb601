"""Writes the TypedDicts of gnsq_lite/arguments.py from the declared options: ``python -m tests.keyword_types``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from gnsq_lite import arguments
from gnsq_lite.consume.settings import ReaderOptions
from gnsq_lite.net.settings import Hooks, SharedOptions
from gnsq_lite.options import ConnectionOptions, HandlerOptions, LookupOptions, ReconnectOptions, RetryOptions
from gnsq_lite.publish.settings import WriterOptions

PATH = Path(arguments.__file__)
LINE = "# -- written by python -m tests.keyword_types"

SHARED = (SharedOptions, ConnectionOptions, LookupOptions, ReconnectOptions)
#: Keywords whose type is wider than the type of their option.
WIDER = {"tls": "TLSOptions | ssl.SSLContext | bool | None"}


def options_of(kinds: Iterable[type[Any]], without: Collection[str] = ()) -> dict[str, str]:
    """Return the types of options by name, as their declarations write them."""
    found = {spec.name: WIDER.get(spec.name, str(spec.type)) for kind in kinds for spec in dataclasses.fields(kind)}
    return {name: kind for name, kind in found.items() if name not in without}


def typed_dict(name: str, base: str, text: str, options: dict[str, str]) -> str:
    """Return the source of a TypedDict."""
    fields = "".join(f"    {option}: {kind}\n" for option, kind in options.items())
    return f'\n\nclass {name}({base}, total=False):\n    """{text}"""\n\n{fields}'


def written() -> str:
    """Return the generated text below the line."""
    shared = options_of(SHARED)
    reader = options_of(
        (ReaderOptions, Hooks, HandlerOptions, RetryOptions),
        [*shared, "on_give_up", "batch_size", "batch_wait", "batch_format"],
    )
    return "".join(
        [
            typed_dict("_Shared", "TypedDict", "Keywords of Readers and Writers.", shared),
            typed_dict("WriterArguments", "_Shared", "Keywords of a Writer.", options_of([WriterOptions], shared)),
            typed_dict("_Reader", "_Shared", "Keywords that Readers and ``@worker.handler`` share.", reader),
            typed_dict(
                "ReaderArguments",
                "_Reader",
                "Keywords of a Reader, except *batch_size*, *batch_wait* and *batch_format*.",
                {"on_give_up": options_of([ReaderOptions])["on_give_up"]},
            ),
            typed_dict(
                "HandlerArguments",
                "_Reader",
                "Keywords of ``@worker.handler`` and of a Worker's defaults.",
                {
                    "on_give_up": "str | " + options_of([ReaderOptions])["on_give_up"],
                    "give_up_on": "GiveUpOn | None",
                    "retry_delay": "RetryDelay | None",
                },
            ),
        ]
    )


def split() -> tuple[str, str]:
    """Return the text of the module down to the line, and the text below the line."""
    head, line, rest = PATH.read_text(encoding="utf-8").partition(LINE)
    dashes, _, below = rest.partition("\n")
    return head + line + dashes + "\n", below


if __name__ == "__main__":
    PATH.write_text(split()[0] + written(), encoding="utf-8")
