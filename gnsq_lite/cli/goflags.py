"""Command lines as Go's programs take them, on click: one dash or two, ``-flag=value``, ``-bool=false``, durations."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gnsq_lite.version import __version__

if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
else:  # click before 8.3 has no such brackets
    _Seconds = click.ParamType

_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_WHOLE = re.compile(rf"[+-]?(?:{_PART.pattern})+", re.ASCII)
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}

#: Headings of ``--help``, in their order; an option names its own with ``section=``.
CONNECTION, SECURITY, OUTPUT = "Connection", "TLS, compression, AUTH", "Output"
_ORDER = ("Options", CONNECTION, SECURITY, OUTPUT)


def seconds(text: str) -> float:
    """Return ``1h30m``, ``250ms`` or a number of seconds as seconds.  Raises ValueError."""
    if _WHOLE.fullmatch(text):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        return -total if text.startswith("-") else total
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        raise ValueError(f"{text!r} is not a duration: write 5m, 250ms, 1h30m or a number of seconds")
    return float(text)


def truth(text: str) -> bool:
    """Return what Go's flags and go-nsq's options take for a bool.  Raises ValueError."""
    if text not in _BOOLS:
        raise ValueError(f"{text!r} is neither true nor false")
    return _BOOLS[text]


class Duration(_Seconds):
    """Seconds as a float, within a range; *above*: the value must be greater."""

    name = "duration"

    def __init__(self, *, low: float = 0.0, above: float | None = None, high: float = float("inf")) -> None:
        self._low, self._above, self._high = low, above, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; fails as click's types do."""
        try:
            found = float(value) if isinstance(value, (int, float)) else seconds(value.strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._above is not None and not found > self._above:
            self.fail(f"{value!r} must be more than {self._above:g} seconds", param, ctx)
        if not self._low <= found <= self._high:
            self.fail(f"{value!r} must be {self._low:g} to {self._high:g} seconds", param, ctx)
        return found


class Option(click.Option):
    """An option that stands under a heading of ``--help``."""

    def __init__(self, *arguments: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


option = functools.partial(click.option, cls=Option)


class GoCommand(click.Command):
    """A command that takes its flags as Go's programs do, and shows them by heading, with an example.

    Args:
        example: A command line, without ``gnsq-lite``.
        versioned: Whether it takes ``--version`` itself, as nsq's utilities do.
    """

    def __init__(self, *arguments: Any, example: str = "", versioned: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.example = example
        if versioned:
            self.params.append(
                Option(
                    ["--version"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_print_version,
                    help="Print the version and end.",
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        return super().parse_args(ctx, normalized(self.get_params(ctx), args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by heading."""
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in _ORDER}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                found.setdefault(getattr(each, "section", "Options"), []).append(record)
        for name, records in found.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example."""
        if self.example:
            with formatter.section("Example"):
                formatter.write(" " * formatter.current_indent + f"gnsq-lite {self.example}\n")
        super().format_epilog(ctx, formatter)


go_command = functools.partial(click.command, cls=GoCommand)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"gnsq-lite {ctx.info_name} v{__version__}")
        ctx.exit()


def normalized(params: Iterable[click.Parameter], args: Sequence[str]) -> list[str]:
    """Return *args* with each flag as click wants it; a value stays with its flag, whatever it begins with.

    Raises click.UsageError for a bool that is neither true nor false.
    """
    named = {}
    for each in params:
        if isinstance(each, click.Option):
            named.update({name.lstrip("-"): (name, each) for name in (*each.opts, *each.secondary_opts)})
    done: list[str] = []
    left = list(args)
    while left:
        text = left.pop(0)
        if text == "--":
            return [*done, text, *left]
        name, equals, value = text.lstrip("-").partition("=")
        if not text.startswith("-") or text.startswith("---") or name not in named:
            done.append(text)
            continue
        flag, found = named[name]
        if found.is_flag or found.count:
            _add_bool(done, flag, value if equals else None)
        elif equals or left:
            value = value if equals else left.pop(0)
            done += [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
        else:
            done.append(flag)
    return done


def _add_bool(done: list[str], flag: str, value: str | None) -> None:
    try:
        is_on = True if value is None else truth(value)
    except ValueError as error:
        raise click.UsageError(f"{flag}: {error}") from error
    if is_on:
        done.append(flag)
    else:  # the last one counts
        done[:] = [each for each in done if each != flag]
