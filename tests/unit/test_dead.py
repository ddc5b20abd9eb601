"""Dead letters, and the directory that keeps them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.testing import make_message
from gnsq_lite.worker import dead
from gnsq_lite.worker.dead import DeadLetter, Directory, from_json, letter_of, to_stores
from gnsq_lite.worker.redrive import ReturnedLetters


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


def failing(error: BaseException) -> DeadLetter:
    """Return the letter of a message whose handler raised *error*."""
    try:
        raise error
    except BaseException as raised:
        return letter_of(make_message(b"\x00\xff", 3, topic="orders", channel="billing#ephemeral"), raised)


def test_a_letter_keeps_the_message_and_the_exception() -> None:
    letter = failing(ValueError("no number"))
    assert (letter.topic, letter.channel, letter.body, letter.attempts) == (
        *("orders", "billing#ephemeral", b"\x00\xff", 3),
    )
    assert (letter.error_type, letter.error) == ("ValueError", "no number")
    assert letter.traceback.endswith("ValueError: no number\n")
    assert letter.given_up_at >= letter.timestamp_ns / 1e9
    assert letter.host
    assert from_json(letter.to_json()) == letter


def test_errors_are_bounded_and_one_that_cannot_be_shown_is_kept_all_the_same() -> None:
    letter = failing(ValueError("x" * 1_000_000))
    assert len(letter.error) < 10_000
    assert len(letter.traceback) == 16_384
    assert failing(Unprintable()).error_type == "Unprintable"
    assert letter_of(make_message(), None).error == "the message has no attempts left"


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", '{"version": 1}', '{"version": 1, "id": "x", "body": ""}'])
def test_what_is_no_letter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is not a dead letter"):
        from_json(text.encode())


def test_a_letter_of_another_version_is_refused() -> None:
    values = {**json.loads(failing(ValueError()).to_json()), "version": 2}
    with pytest.raises(ValueError, match="this gnsq_lite reads version 1"):
        from_json(json.dumps(values).encode())


def test_a_directory_is_private_and_bounded_and_keeps_a_message_once(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    store = Directory(folder, most=2)
    first, second, third = (failing(ValueError(name)) for name in ("1", "2", "3"))
    for letter in (first, first, second):
        Directory(folder, most=2).keep(letter)
    with pytest.raises(OSError, match="there are 2 dead letters: retry or drop some"):
        store.keep(third)
    assert {letter.error for letter in store.letters()} == {"1", "2"}
    store.remove(first)
    store.remove(first)  # another process was quicker
    store.keep(third)
    assert store.count() == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert {file.suffix for file in folder.iterdir()} == {".json"}


def test_a_file_that_is_no_letter_is_logged_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Directory(tmp_path)
    store.keep(failing(ValueError()))
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    assert len(list(store.letters())) == 1
    assert "this is not a dead letter" in caplog.text


def test_a_letter_is_stored_beside_links_that_have_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letter, outside = failing(ValueError()), tmp_path / "outside"
    outside.write_bytes(b"data")
    folder = tmp_path / "dead"
    store = Directory(folder)
    monkeypatch.setattr(dead, "native_ident", lambda: 7)
    for name in (f"{letter.name}.json", f".{letter.name}.json.{os.getpid()}.7.part"):
        (folder / name).symlink_to(outside)
    store.keep(letter)
    assert list(store.letters()) == [letter]
    assert (outside.read_bytes(), [file.is_symlink() for file in folder.iterdir()]) == (b"data", [False])


def test_a_removal_stays_in_the_directory_whatever_the_letter_says(tmp_path: Path) -> None:
    store = Directory(tmp_path / "dead")
    (tmp_path / "dead" / "x.json").write_bytes(failing(ValueError()).to_json())
    forged = json.loads(failing(ValueError()).to_json()) | {"topic": "../orders", "channel": "../../c"}
    outside = from_json(json.dumps(forged).encode())
    (tmp_path / f"{outside.topic[3:]}.json").write_bytes(b"data")
    store.remove(outside)
    (letter,) = store.letters()
    store.remove(letter)
    assert [file.name for file in tmp_path.rglob("*.json")] == ["orders.json"]
    with pytest.raises(ValueError, match="stored"):
        from_json(json.dumps(forged | {"stored": "../orders"}).encode())


class Broken:
    word = "broken"

    def keep(self, letter: DeadLetter) -> None:
        raise OSError("the disk is full")

    def letters(self) -> Iterator[DeadLetter]:
        return iter(())

    def claim(self, letter: DeadLetter) -> AbstractContextManager[bool]:
        raise AssertionError

    def remove(self, letter: DeadLetter) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def test_the_first_store_that_takes_a_letter_keeps_it_and_a_line_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Directory(tmp_path)
    keep = to_stores(Broken(), store)
    try:
        raise ValueError("no number")
    except ValueError:
        keep(make_message(attempts=2, topic="orders", channel="billing"))
    assert [letter.error for letter in store.letters()] == ["no number"]
    assert "cannot keep a dead letter in broken: the disk is full" in caplog.text
    assert f"orders/billing after 2 attempts; the message is kept in {store.word}: ValueError: no" in caplog.text


def test_where_no_store_takes_a_letter_the_callback_fails() -> None:
    with pytest.raises(OSError, match="the disk is full"):
        to_stores(Broken())(make_message())


@pytest.mark.parametrize("skew", [-290.0, 0.0, 290.0])
def test_a_retry_leaves_the_letters_of_messages_that_it_has_published(skew: float) -> None:
    now = 1_800_000_000.0
    returned = ReturnedLetters(now)

    def letter(age: float, body: bytes) -> DeadLetter:
        published = int((now - age + skew) * 1e9)
        more: dict[str, Any] = {"channel": "c", "id": b"0" * 16, "attempts": 1, "nsqd_address": "nsqd:4150"}
        return DeadLetter(topic="t", body=body, timestamp_ns=published, **more)

    assert [returned.is_return(letter(age, b"a")) for age in (3600.0, 3600.0, 1.0)] == [False, False, True]
    assert [returned.is_return(letter(age, b"b")) for age in (1.0, -1.0, -10.0)] == [False, True, True]
    assert returned.is_return(letter(-600.0, b"c"))
