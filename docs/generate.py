"""Writes the pages that come from the code into docs/generated; the build of the documentation calls it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gnsq_lite import options
from gnsq_lite.consume.settings import ReaderOptions
from gnsq_lite.net.settings import Hooks
from gnsq_lite.publish.settings import WriterOptions
from gnsq_lite.stats import ConnectionStats, ReaderStats, WriterStats
from gnsq_lite.worker import Middleware

HERE = Path(__file__).parent

KINDS: list[tuple[str, str, type[Any]]] = [
    ("Reader", "Keywords of Reader; topic, channel and handler are positional.", ReaderOptions),
    ("Writer", "Keywords of Writer; its first argument is ``nsqd_tcp_addresses``, as of a Reader.", WriterOptions),
    ("Connection", "Keywords of Reader and Writer.", options.ConnectionOptions),
    ("Discovery", "Keywords of Reader and Writer.", options.LookupOptions),
    ("Retries", "Keywords of Reader.", options.RetryOptions),
    ("Handlers", "Keywords of Reader; see :doc:`handlers`.", options.HandlerOptions),
    ("Reconnection", "Keywords of Reader.", options.ReconnectOptions),
    ("Backoff", "``Reader(backoff=BackoffOptions(...))``.", options.BackoffOptions),
    ("Reconnection of a Writer", "Keywords of Writer.", options.WriterReconnectOptions),
    ("TLS", "``tls=TLSOptions(...)``.", options.TLSOptions),
    (
        "HTTP clients",
        "Keywords of ``NsqdClient`` and ``LookupdClient`` in ``gnsq_lite.http``.",
        options.HTTPOptions,
    ),
]
#: The requirement that a docstring names, for maintainers; the pages leave it out.
RULES = re.compile(r"\s*\((?:[A-Z]{2,7}-\d+(?:,? (?:to )?)?)+\)")


def plain(text: str) -> str:
    """Return a line of a docstring without the rules it names, as a line of a page."""
    return RULES.sub("", text).replace("*", "\\*").replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]], widths: str) -> list[str]:
    """Return a table."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in [head, *rows]:
        lines += [f"   {'*' if at == 0 else ' '} - {cell}".rstrip() for at, cell in enumerate(row)]
    return [*lines, ""]


def title(text: str, under: str = "-") -> list[str]:
    """Return a heading."""
    return [text, under * len(text), ""]


# -- options


def shown(spec: dataclasses.Field[Any]) -> str:
    """Return a field's default as it is written."""
    if spec.default is dataclasses.MISSING:
        return "{}"
    if spec.name == "user_agent":
        return "'gnsq_lite/VERSION'"
    return amount(spec.default) if spec.metadata.get("unit") == "bytes" and spec.default else repr(spec.default)


def amount(count: float) -> str:
    """Return a number of bytes, or any other, as people write it."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size and count % size == 0:
            return f"{count // size:.0f} {unit}"
    return f"{count:,.0f}" if count == int(count) else f"{count:g}"


def span(spec: dataclasses.Field[Any]) -> str:
    """Return a field's range."""
    low, high = spec.metadata.get("low"), spec.metadata.get("high")
    if spec.metadata.get("span") or low is None or high is None:
        return str(spec.metadata.get("span", ""))
    if spec.metadata["unit"] == "bytes":
        high += high % 2  # 2**31 - 1 is read as 2 GiB
        return f"{amount(low)} to {amount(high)}"
    return f"{low:,g} or more" if high == 2**31 - 1 else f"{low:,g} to {high:,.0f}"


def _roles(text: str) -> str:
    text = re.sub(r":(?:class|meth|func|exc|attr):`~?(?:[\w.]+\.)?(\w+)`", r"``\1``", text)
    return RULES.sub("", re.sub(r"(?<!\*)\*(\w+)\*", r"*\1*", text))


def option_page() -> str:
    """Return options.rst."""
    lines = [
        *title("Options", "="),
        "Every option.  Durations are seconds, as floats.  A value out of range raises",
        "``OptionError`` when the object is made, before anything is opened.  A misspelt name raises it too, and the",
        "error names the option that was probably meant.",
        "",
    ]
    for name, where, kind in KINDS:
        rows = [
            [f"``{f.name}``", f"``{shown(f)}``", f.metadata.get("unit", ""), span(f), plain(f.metadata.get("doc", ""))]
            for f in dataclasses.fields(kind)
        ]
        lines += [
            *title(name),
            where.replace(":doc:`", ":doc:`/"),
            "",
            *table(["name", "default", "unit", "range", "meaning"], rows, "22 12 10 16 40"),
        ]
    return "\n".join(lines)


# -- hooks


def hook_page() -> str:
    """Return the page of hooks: what is called, with what, and when."""
    lines = [*title("Hooks and callbacks", "=")]
    lines += [
        "Generated from the code.  A hook is a function that you give to ``Reader`` as a keyword.  What it raises is",
        "logged and changes nothing else.  Hooks run in greenlets of the I/O loop and must not block it; the table",
        "says where ``on_failure`` runs.",
        "",
    ]
    rows = [[f"``{f.name}({f.metadata['arguments']})``", _roles(f.metadata["doc"])] for f in dataclasses.fields(Hooks)]
    lines += [*title("Hooks of a Reader"), *table(["hook", "called when"], rows, "40 60")]
    rows = [[f"``{name}``", plain(" ".join(meaning.split()))] for name, meaning in _CALLBACKS]
    lines += [*title("Callbacks that decide"), *table(["callback", "what it decides"], rows, "40 60")]
    lines += [*title("Middleware of a Worker"), inspect.cleandoc(inspect.getdoc(Middleware) or ""), ""]
    rows = []
    for name, member in vars(Middleware).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            called = ", ".join(list(inspect.signature(member).parameters)[1:])
            rows.append([f"``{name}({called})``", _roles(" ".join((inspect.getdoc(member) or "").split()))])
    return "\n".join([*lines, *table(["hook", "called when"], rows, "40 60")])


_CALLBACKS = [
    ("handler(message)", "Returns: FIN.  Raises: REQ and backoff.  Runs in the Reader's pool, so it may block there."),
    ("on_give_up(message)", "Keeps a message that had more than max_attempts.  FIN follows when it returns, REQ when it"
     " raises.  Runs in the handler's thread or greenlet, or in another one if time_limit ended the handler."),
    ("address_map(host, port)", "Returns the (host, port) to connect to in place of the announced one.  A dict of"
     " hosts works too."),
    ("allowed_addresses(host, port)", "Returns whether a discovered nsqd may be connected to."),
]  # fmt: skip


# -- measured values


def measured_page() -> str:
    """Return measured.rst: the values of stats(), with their metrics."""
    lines = [
        *title("Measured values", "="),
        "The fields of what ``stats()`` returns, and the Prometheus metric of each (:doc:`/metrics`).  Metrics of a",
        "Reader have the labels ``topic`` and ``channel``, those of a Writer ``writer``; a further label is in braces.",
        "Of connections, only those of Readers have metrics.",
        "",
    ]
    for name, kind in (("Reader", ReaderStats), ("Connection", ConnectionStats), ("Writer", WriterStats)):
        rows = []
        for spec in dataclasses.fields(kind):
            metric, label = spec.metadata["metric"], spec.metadata["label"]
            shown_label = {"": "", "outcome": f'{{outcome="{spec.name}"}}', "nsqd": "{nsqd}"}[label]
            rows.append([f"``{spec.name}``", spec.metadata["text"], metric and f"``{metric}{shown_label}``"])
        lines += [*title(name), *table(["field", "meaning", "metric"], rows, "20 45 35")]
    return "\n".join(lines)


# -- the command line


def command_page() -> str:
    """Return the page of the commands."""
    import click

    from gnsq_lite.cli.app import main

    context = click.Context(main, info_name="gnsq-lite", max_content_width=100, terminal_width=100)
    lines = [*title("Command line", "=")]
    lines += [
        "Durations are Go's (``250ms``, ``1h30m``) or seconds.  :doc:`/tools` says what each command is for.",
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; :doc:`/worker` has its own.",
        "",
    ]
    return "\n".join([*lines, *_commands(main, context, "-")])


def _commands(group: Any, context: Any, under: str) -> Iterator[str]:
    import click

    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = click.Context(command, info_name=name, parent=context, max_content_width=100)
        yield from title(inner.command_path, under)
        help_text = inspect.cleandoc(command.help or command.short_help or "")
        yield from (_escaped(line) for line in help_text.replace("\b\n", "").splitlines())
        yield ""
        if isinstance(command, click.Group):
            yield from _commands(command, inner, "~")
            continue
        usage = " ".join(command.collect_usage_pieces(inner))
        yield from [".. code-block:: text", "", f"   {inner.command_path} {usage}"]
        if getattr(command, "example", ""):
            yield f"   gnsq-lite {command.example}"
        yield ""
        sections: dict[str, list[list[str]]] = {}
        for parameter in command.get_params(inner):
            record = parameter.get_help_record(inner)
            if record is not None and record[0].startswith("-") and "--help" not in parameter.opts:
                rows = sections.setdefault(getattr(parameter, "section", "Options"), [])
                rows.append([f"``{record[0]}``", _escaped(record[1])])
        for section, rows in sections.items():
            yield from table([section, ""], rows, "40 60")


def _escaped(text: str) -> str:
    return re.sub(r"([*`|\\]|(?<=\w)_(?=\W|$))", r"\\\1", text)


#: Page of the reference -> what makes it.
PAGES = {
    "options.rst": option_page,
    "hooks.rst": hook_page,
    "measured.rst": measured_page,
    "commands.rst": command_page,
}


def write(folder: Path) -> None:
    """Write the pages that have changed."""
    folder.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        path, made = folder / name, make() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    write(HERE / "generated")
