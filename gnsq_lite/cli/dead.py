"""``gnsq-lite dead list | show | retry | drop``: dead letters of a directory, a topic or Django's database."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from gnsq_lite import Writer
from gnsq_lite.cli import flags
from gnsq_lite.cli.output import console, echo, errors, visible
from gnsq_lite.cli.params import Command, Duration
from gnsq_lite.errors import ConnectError, NotSent, NSQConnectionError, NSQError, escape
from gnsq_lite.option_fields import per_second
from gnsq_lite.worker.dead import DeadLetter, Store, open_stores

#: Value of --group-by -> function that returns the group of a letter.
_GROUPS: dict[str, Callable[[DeadLetter], str]] = {
    "error": lambda letter: letter.error_type or letter.error,
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
        click.option("--error", help="Only letters with this exception class."),
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


def _selected(store: Store, unread: list[NSQError], given: dict[str, Any]) -> Iterator[DeadLetter]:
    """Yield the letters that the flags select."""
    left = given["limit"] or float("inf")
    for letter in _readable(store, unread):
        if (
            given["topic"] in (None, letter.topic)
            and given["channel"] in (None, letter.channel)
            and given["error"] in (None, letter.error_type)
            and given["nsqd"] in (None, letter.nsqd_address)
            and (not given["keys"] or letter.key in given["keys"])
            and (given["since"] is None or letter.given_up_at >= time.time() - given["since"])
        ):
            yield letter
            left -= 1
            if left <= 0:
                return


@contextmanager
def _opened(word: str, given: dict[str, Any]) -> Iterator[tuple[Store, Callable[[str], Writer], list[NSQError]]]:
    """Yield the store, a function that returns the Writer for an nsqd, and a list of errors.

    Addresses in flags replace the nsqd of the Writer.  At the end, raises the first error of the list.
    """
    where = flags.where(given.pop("nsqds"), given.pop("lookupds"))
    options = flags.secured(given)
    writers: dict[str, Writer] = {}

    def writer(nsqd: str) -> Writer:
        own = dict(where) if any(where.values()) else {"nsqd_tcp_addresses": nsqd or None}
        key = "" if any(where.values()) else nsqd
        if key not in writers:
            writers[key] = Writer(**own, **options)
        return writers[key]

    if os.path.isdir(word):
        word = f"directory:{word}"
    kind, _, path = word.partition(":")
    if kind == "directory" and not os.path.isdir(path):
        raise click.UsageError(f"there is no directory {path!r}")
    if kind not in ("directory", "topic", "bodies", "django") or "," in word:
        raise click.UsageError(f"STORE {word!r} is not one of directory:PATH, topic:NAME, bodies:NAME and django")
    if kind == "django":
        _set_up_django()
    (store,) = open_stores(word, lambda: writer(""), {**where, **options})
    unread: list[NSQError] = []
    try:
        yield store, writer, unread
    finally:
        store.close()
        for each in writers.values():
            each.close()
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


@command.command("list", cls=Command, example="dead list dead --group-by error")
@_store
@_selection
@click.option("--group-by", type=click.Choice(list(_GROUPS)), help="Count the letters by this field.")
@flags.as_json
def list_(store: str, group_by: str | None, as_json: bool, **given: Any) -> None:
    """List letters, or count them by error, topic, nsqd or host.  A letter id is not the message id."""
    with _opened(store, given) as (opened, _, unread):
        letters = _selected(opened, unread, given)
        if group_by is not None:
            _print_groups(group_by, letters, as_json)
        elif as_json:
            for letter in letters:
                echo(json.dumps({"letter_id": letter.key, **json.loads(letter.to_json())}))
        else:
            table = _table("letter id", "topic/channel", "attempts", "given up", "error")
            for letter in letters:
                where = f"{letter.topic}/{letter.channel}"
                _add_row(table, letter.key, where, str(letter.attempts), _when(letter), _one_line(letter))
            console.print(table)


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
    with _opened(store, given) as (opened, _, _):
        letter = next((each for each in opened.letters() if each.key == key), None)
    if letter is None:
        errors.print(f"gnsq-lite: no letter has the id {key!r}; dead list prints the ids", markup=False)
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


class ReturnedLetters:
    """Recognizes letters of messages that were published after a retry began at *began*, in seconds since 1970.

    nsqd's clock may be SKEW seconds ahead or behind.  A younger message may therefore be older than the retry.  It
    counts as returned only if the retry has already published the same body for the same topic.
    """

    SKEW = 300.0

    def __init__(self, began: float) -> None:
        self._oldest_ns, self._newest_ns = int((began - self.SKEW) * 1e9), int((began + self.SKEW) * 1e9)
        self._seen: set[bytes] = set()

    def is_return(self, letter: DeadLetter) -> bool:
        """Return whether *letter* must stay in its store.  Otherwise remember the letter."""
        key = hashlib.blake2b(letter.topic.encode() + b"\0" + letter.body, digest_size=16).digest()
        is_known = key in self._seen
        self._seen.add(key)
        return letter.timestamp_ns > self._newest_ns or (is_known and letter.timestamp_ns >= self._oldest_ns)


@command.command("retry", cls=Command, example="dead retry dead --error KeyError --rate 100/s")
@_store
@_selection
@click.option("--to", "to_topic", metavar="TOPIC", help="Publish to this topic instead of the letter's topic.")
@click.option("--rate", metavar="N/s", help="Maximum rate, such as 100/s or 30/m.")
@click.option("--dry-run", is_flag=True, help="Only print the number of letters that would be published to each topic.")
def retry(store: str, to_topic: str | None, rate: str | None, dry_run: bool, **given: Any) -> int:
    """Publish letters to their topic again, and remove each letter after nsqd's OK.

    A letter is published to the nsqd that delivered its message, or to an nsqd given or found by flags.  Every channel
    of the topic receives the message again.  Letters of a topic that may be newer than
    this retry stay in the topic.
    """
    per = per_second("rate", rate)
    kind, _, own_topic = store.partition(":")
    if kind not in ("topic", "bodies"):
        own_topic = ""
    if own_topic and own_topic == (to_topic or ("" if kind == "topic" else own_topic)):
        raise click.UsageError(f"{store} would retry its letters into itself: give --to another topic")
    again, has_addresses = ReturnedLetters(time.time()), bool(given["nsqds"] or given["lookupds"])
    counts, gone, failed, stayed = Counter[str](), Counter[str](), 0, 0
    try:
        with _opened(store, given) as (opened, writer, unread):
            for letter in _selected(opened, unread, given):
                topic = to_topic or letter.topic
                if topic == own_topic:
                    failed += 1
                    said = (
                        f"gnsq-lite: the letter {letter.key} names the store's topic {topic}: give --to another topic"
                    )
                    errors.print(said, markup=False)
                    continue
                if own_topic and again.is_return(letter):
                    stayed += 1
                    continue
                nsqd = "" if has_addresses else letter.nsqd_address
                if nsqd in gone:
                    gone[nsqd] += 1
                    continue
                if not dry_run:
                    try:
                        writer(letter.nsqd_address).publish(topic, letter.body)
                    except (NotSent, NSQConnectionError) as error:
                        errors.print(f"gnsq-lite: {error}", markup=False)
                        gone[nsqd] += 1
                        continue
                    except NSQError as error:
                        failed += 1
                        errors.print(f"gnsq-lite: cannot publish the letter {letter.key}: {error}", markup=False)
                        continue
                    opened.remove(letter)
                    if per is not None:
                        time.sleep(1.0 / per)
                counts[topic] += 1
    finally:
        _print_counts("would be published" if dry_run else "published", counts)
        if stayed:
            echo(f"{stayed} letters stay, because they may be newer than this retry")
        for nsqd, count in gone.items():
            whose = f"of {nsqd} stay, because it cannot" if nsqd else "stay, because no nsqd can"
            said = f"{count} letters {whose} be reached: --nsqd-tcp-address publishes them to another nsqd"
            errors.print(f"gnsq-lite: {said}", markup=False)
    return 1 if failed or gone else 0


@command.command("drop", cls=Command, example="dead drop dead --topic orders")
@_store
@_selection
@click.option("--all", "drop_all", is_flag=True, help="Delete every letter.")
@click.option("--dry-run", is_flag=True, help="Only print how many letters would be deleted.")
def drop(store: str, drop_all: bool, dry_run: bool, **given: Any) -> None:
    """Delete letters."""
    if not drop_all and not any(given[name] for name in ("topic", "channel", "error", "nsqd", "since", "keys")):
        raise click.UsageError("select letters, or give --all")
    counts = Counter[str]()
    with _opened(store, given) as (opened, _, unread):
        for letter in _selected(opened, unread, given):
            if not dry_run:
                opened.remove(letter)
            counts[letter.topic] += 1
        _print_counts("would be deleted" if dry_run else "deleted", counts)


def _print_counts(done: str, counts: Counter[str]) -> None:
    for topic, count in sorted(counts.items()):
        echo(f"{escape(topic)}: {count} letters {done}")
    if not counts:
        echo(f"0 letters {done}")
