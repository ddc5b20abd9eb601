"""``gnsq-lite dead list | show | retry | drop``: dead letters of a directory, a topic or Django's database."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import Progress, console, echo, errors, visible
from gnsq_lite.cli.params import Command, Duration
from gnsq_lite.errors import ConnectError, NSQError
from gnsq_lite.text import escape
from gnsq_lite.worker.dead import DeadLetter, Directory, Store, open_stores
from gnsq_lite.worker.redrive import Redrive


def _task(letter: DeadLetter) -> str:
    """Return the full name of a Django task, or "" if the letter is of another message."""
    try:
        return str(json.loads(letter.body)["task"])
    except (TypeError, KeyError, ValueError, RecursionError):
        return ""


#: Value of --group-by -> function that returns the group of a letter.
_GROUPS: dict[str, Callable[[DeadLetter], str]] = {
    "error": lambda letter: letter.error_type or letter.error,
    "task": _task,
    "topic": lambda letter: f"{letter.topic}/{letter.channel}",
    "nsqd": lambda letter: letter.nsqd_address,
    "host": lambda letter: letter.host,
}


@click.group()
def command() -> None:
    """List, show, retry and drop the messages that workers have given up.

    STORE is a directory, or a value of on_give_up: directory:PATH, topic:NAME, bodies:NAME, django or django:ALIAS.
    """


def _store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument STORE and the flags for connections to nsqds."""
    return click.argument("store")(flags.addresses(flags.security(function)))


def _selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that select letters."""
    for add in (
        click.option("--topic", help="Only letters of this topic."),
        click.option("--channel", help="Only letters of this channel."),
        click.option("--error", help="Only letters with this exception class, with or without its module."),
        click.option("--task", help="Only letters of this Django task, with or without its module."),
        click.option("--nsqd", help="Only letters from this nsqd, HOST:PORT."),
        click.option("--since", type=Duration(), help="Only letters given up less than this time ago, such as 2h."),
        click.option("--id", "keys", multiple=True, help="Only the letter with this letter id; repeatable."),
        click.option("--limit", type=click.IntRange(1), help="Maximum number of letters."),
    ):
        function = add(function)
    return function


def _readable(store: Store, unread: list[NSQError]) -> Iterator[DeadLetter]:
    """Yield the letters of a store.  If an nsqd cannot be reached, add the error to *unread* after the last letter."""
    try:
        yield from store.letters()
    except ConnectError as error:
        unread.append(error)


def _is_same(found: str, wanted: str) -> bool:
    """Return whether two names are equal, or one is the other without its module."""
    return found == wanted or (found != "" and f".{found}".endswith(f".{wanted}")) or wanted.endswith(f".{found}")


def _shown(store: Store, letters: Iterator[DeadLetter]) -> Iterator[DeadLetter]:
    """Yield *letters*, and show their number on a terminal, with a bar if the store is a directory."""
    if not errors.is_terminal:
        yield from letters
        return
    total = store.count() if isinstance(store, Directory) else 0
    with Progress("dead letters") as progress:
        for number, letter in enumerate(letters, 1):
            progress.show(part=number / total if total else None, read=number)
            yield letter


def _selected(store: Store, unread: list[NSQError], given: dict[str, Any]) -> Iterator[DeadLetter]:
    """Yield the letters that the flags select."""
    left = given["limit"] or float("inf")
    for letter in _shown(store, _readable(store, unread)):
        if (
            given["topic"] in (None, letter.topic)
            and given["channel"] in (None, letter.channel)
            and (given["error"] is None or _is_same(letter.error_type, given["error"]))
            and (given["task"] is None or _is_same(_task(letter), given["task"]))
            and given["nsqd"] in (None, letter.nsqd_address)
            and (not given["keys"] or letter.key in given["keys"])
            and (given["since"] is None or letter.given_up_at >= time.time() - given["since"])
        ):
            yield letter
            left -= 1
            if left <= 0:
                return


@contextmanager
def _opened(word: str, given: dict[str, Any]) -> Iterator[tuple[Store, dict[str, Any], dict[str, Any], list[NSQError]]]:
    """Yield the store, the addresses in flags, the other keywords of a Writer, and a list of errors.

    At the end, raises the first error of the list.
    """
    where = flags.where(given.pop("nsqds"), given.pop("lookupds"))
    options = flags.secured(given)
    if os.path.isdir(word):
        word = f"directory:{word}"
    kind, _, path = word.partition(":")
    if kind == "directory" and not os.path.isdir(path):
        raise click.UsageError(f"there is no directory {path!r}")
    if kind not in ("directory", "topic", "bodies", "django") or "," in word:
        raise click.UsageError(f"STORE {word!r} is not one of directory:PATH, topic:NAME, bodies:NAME and django")
    if kind == "django":
        _set_up_django()
    (store,) = open_stores(word, partial(Writer, **where, **options), {**where, **options})
    unread: list[NSQError] = []
    try:
        yield store, where, options, unread
    finally:
        store.close()
    if unread:
        raise unread[0]


def _set_up_django() -> None:
    """Set up Django with DJANGO_SETTINGS_MODULE.  The app gnsq_lite.contrib.django then registers its store."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise click.UsageError("django: DJANGO_SETTINGS_MODULE is not set")
    sys.path.insert(0, os.getcwd())
    importlib.import_module("django").setup()


def _when(letter: DeadLetter) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.given_up_at)) if letter.given_up_at else ""


def _one_line(letter: DeadLetter) -> str:
    return f"{letter.error_type}: {letter.error}".removeprefix(": ").partition("\n")[0][:120]


class _NewestFirst:
    """Keeps lines in a temporary file, so that 100,000 letters need little memory, and prints the newest first."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - print() closes it
        self._order: list[tuple[float, int]] = []

    def add(self, letter: DeadLetter, line: str) -> None:
        """Add a line about *letter*."""
        self._order.append((-letter.given_up_at, self._file.tell()))
        self._file.write(line.encode("utf-8", "backslashreplace") + b"\n")

    def print(self, most: int | None) -> None:
        """Print at most *most* lines, and close the file."""
        with self._file:
            for _, at in sorted(self._order)[:most]:
                self._file.seek(at)
                print(self._file.readline().decode(), end="")
        sys.stdout.flush()


@command.command("list", cls=Command, example="dead list dead --group-by error")
@_store
@_selection
@click.option("--group-by", type=click.Choice(list(_GROUPS)), help="Count the letters by this field.")
@flags.as_json
def list_(store: str, group_by: str | None, as_json: bool, **given: Any) -> None:
    """List letters, newest first, or count them by error, task, topic, nsqd or host.

    A letter id is not the message id.
    """
    most, given["limit"] = given["limit"], given["limit"] if group_by is not None else None
    with _opened(store, given) as (opened, _, _, unread):
        letters = _selected(opened, unread, given)
        if group_by is not None:
            _print_groups(group_by, letters, as_json)
            return
        lines = _NewestFirst()
        for letter in letters:
            if as_json:
                line = json.dumps({"letter_id": letter.key, **json.loads(letter.to_json())})
            else:
                where = escape(f"{letter.topic}/{letter.channel}")
                line = f"{letter.key:10}  {_when(letter):19}  {letter.attempts:8}  {where}  {escape(_one_line(letter))}"
            lines.add(letter, line)
        if not as_json:
            echo(f"{'letter id':10}  {'given up':19}  {'attempts':8}  topic/channel  error")
        lines.print(most)


def _table(*columns: str) -> Table:
    table = Table(box=None)
    for column in columns:
        table.add_column(column, no_wrap="error" not in column)
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Add a row of one line, whatever the cells contain: markup, line feeds, escape sequences."""
    table.add_row(*(Text(escape(cell)) for cell in cells))


def _print_groups(group_by: str, letters: Iterator[DeadLetter], as_json: bool) -> None:
    counts, last = Counter[str](), dict[str, DeadLetter]()
    for letter in letters:
        key = _GROUPS[group_by](letter)
        counts[key] += 1
        if key not in last or letter.given_up_at > last[key].given_up_at:
            last[key] = letter
    if as_json:
        echo(json.dumps(dict(counts.most_common())))
        return
    table = _table("letters", group_by, "last given up", "last letter id", "last error")
    for key, count in counts.most_common():
        _add_row(table, f"{count:,}", key, _when(last[key]), last[key].key, _one_line(last[key]))
    console.print(table)


@command.command("show", cls=Command, example="dead show dead 67c19db2b0")
@_store
@click.argument("key", metavar="LETTER_ID")
def show(store: str, key: str, **given: Any) -> int:
    """Print one letter with its topic, nsqd, error, traceback and body.  `dead list` prints the letter ids."""
    with _opened(store, given) as (opened, _, _, unread):
        letter = next((each for each in _readable(opened, unread) if each.key == key), None)
        if letter is None:
            said = f"gnsq-lite: no letter has the id {key!r}; dead list prints the ids"
            errors.print(said, markup=False)
    if letter is None:
        return 1
    published = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.timestamp_ns / 1e9))
    for title, value in (
        ("topic/channel", f"{letter.topic}/{letter.channel}"),
        ("message", f"{letter.id.decode('ascii', 'replace')} of {letter.nsqd_address}, {letter.attempts} attempts"),
        ("published", published),
        ("given up", f"{_when(letter)} on {letter.host}"),
        ("error", f"{letter.error_type}: {letter.error}".removeprefix(": ")),
    ):
        echo(f"{title + ':':15}{visible(value)}")
    echo(f"\n{visible(letter.traceback)}\nbody, {len(letter.body)} bytes:")
    echo(visible(letter.body.decode("utf-8", "backslashreplace")))
    return 0


@command.command("retry", cls=Command, example="dead retry dead --error KeyError --rate 100/s")
@_store
@_selection
@click.option("--to", "to_topic", metavar="TOPIC", help="Publish to this topic instead of the letter's topic.")
@click.option("--rate", metavar="N/s", help="Maximum rate, such as 100/s or 30/m.")
@click.option("--dry-run", is_flag=True, help="Only print the number of letters that would be published to each topic.")
def retry(store: str, to_topic: str | None, rate: str | None, dry_run: bool, **given: Any) -> int:
    """Publish letters to their topic again, and remove each letter after nsqd's OK.

    A letter is published to the nsqd that delivered its message, unless flags name other nsqds only.  Every channel
    of the topic receives the message again.  Letters of a topic that may be newer than
    this retry stay in the topic.
    """
    kind, _, own_topic = store.partition(":")
    if kind not in ("topic", "bodies"):
        own_topic = ""
    if own_topic and own_topic == (to_topic or ("" if kind == "topic" else own_topic)):
        raise click.UsageError(f"{store} would retry its letters into itself: give --to another topic")
    with _opened(store, given) as (opened, where, options, unread):
        redrive = Redrive(
            *(options, where),
            to_topic=to_topic,
            own_topic=own_topic,
            rate=rate,
            only_count=dry_run,
            report=lambda text: errors.print(f"gnsq-lite: {text}", markup=False),
        )
        try:
            with redrive:
                for letter in _selected(opened, unread, given):
                    redrive.publish(opened, letter)
        finally:
            _print_counts("would be published" if dry_run else "published", redrive.published)
            if redrive.returned:
                echo(f"{redrive.returned} letters stay, because they may be newer than this retry")
            for line in redrive.summary():
                said = f"gnsq-lite: {line}: --nsqd-tcp-address publishes them to another nsqd"
                errors.print(escape(said), markup=False)
    return 1 if redrive.refused or redrive.unreachable else 0


@command.command("drop", cls=Command, example="dead drop dead --topic orders")
@_store
@_selection
@click.option("--all", "drop_all", is_flag=True, help="Delete every letter.")
@click.option("--dry-run", is_flag=True, help="Only print how many letters would be deleted.")
def drop(store: str, drop_all: bool, dry_run: bool, **given: Any) -> None:
    """Delete letters."""
    if not drop_all and not any(given[name] for name in ("topic", "channel", "error", "task", "nsqd", "since", "keys")):
        raise click.UsageError("select letters, or give --all")
    counts = Counter[str]()
    with _opened(store, given) as (opened, _, _, unread):
        for letter in _selected(opened, unread, given):
            with nullcontext(True) if dry_run else opened.claim(letter) as is_stored:
                if is_stored and not dry_run:
                    opened.remove(letter)
                counts[letter.topic] += is_stored
        _print_counts("would be deleted" if dry_run else "deleted", counts)


def _print_counts(done: str, counts: Counter[str]) -> None:
    for topic, count in sorted(counts.items()):
        echo(f"{escape(topic)}: {count} letters {done}")
    if not counts:
        echo(f"0 letters {done}")
