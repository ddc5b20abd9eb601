"""Click types and classes that several commands share: durations, headings of ``--help``, examples."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from gnsq_lite.units import parse_duration, parse_size

if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
    _Bytes = click.ParamType[int]
else:  # before click 8.3, ParamType is not generic
    _Seconds = click.ParamType
    _Bytes = click.ParamType

#: Headings of ``--help``, in order.  The argument ``section=`` of an option names its heading.
CONNECTION, SECURITY, OUTPUT = "Connection", "TLS, compression, AUTH", "Output"


class Duration(_Seconds):
    """Click type that converts a duration such as 5m to seconds, and refuses durations outside *low* to *high*."""

    name = "duration"

    def __init__(self, *, low: float = 0.0, high: float = float("inf")) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds.  Raises click.BadParameter."""
        try:
            found = float(value) if isinstance(value, (int, float)) else parse_duration(value.strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self._low <= found <= self._high:
            self.fail(f"{value!r} must be {self._low:g} to {self._high:g} seconds", param, ctx)
        return found


class Size(_Bytes):
    """Click type that converts a size such as 64k (64 KiB), with an optional k, m, g or t, to bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes.  Raises click.BadParameter."""
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Option(click.Option):
    """An option with a heading in ``--help``."""

    def __init__(self, *arguments: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


class Command(click.Command):
    """A command whose ``--help`` groups the options by heading, and ends with ``gnsq-lite`` and *example*."""

    def __init__(self, *arguments: Any, example: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.example = example

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by heading."""
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Options", CONNECTION, SECURITY, OUTPUT)}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                found[getattr(each, "section", "Options")].append(record)
        for name, records in found.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example."""
        with formatter.section("Example"):
            formatter.write(" " * formatter.current_indent + f"gnsq-lite {self.example}\n")
        super().format_epilog(ctx, formatter)


option = functools.partial(click.option, cls=Option)
command = functools.partial(click.command, cls=Command)
