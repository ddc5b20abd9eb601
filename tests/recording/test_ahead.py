"""What a slow store is asked for when a spool is opened, read and swept: little, and side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from gnsq_lite.arrow import to_batch
from gnsq_lite.recording import ahead, known
from gnsq_lite.recording.ahead import read_ahead
from gnsq_lite.recording.known import DedupIndex
from tests.recording.fakes import FakeMessage


class Counting:
    """A store in memory that counts what it is asked for, by call and folder; names in *late* are not listed."""

    def __init__(self) -> None:
        self.url, self.prefix = "fake://spool", ""
        self.objects: dict[str, bytes] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        self.late: set[str] = set()
        self.wait: Callable[[], None] = lambda: None

    def below(self, prefix: str) -> Counting:
        found = Counting()
        found.__dict__.update(self.__dict__, prefix=self.prefix + prefix)
        return found

    def _count(self, call: str) -> None:
        self.asked[call, self.prefix] += 1

    def check(self) -> None:
        pass

    def create(self, name: str, data: bytes) -> None:
        self._count("create")
        if self.prefix + name in self.objects:
            raise FileExistsError(name)
        self.objects[self.prefix + name] = data

    def write(self, name: str, data: bytes) -> None:
        self._count("write")
        self.objects[self.prefix + name] = data

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        self._count("read")
        if self.prefix == "log/":
            self.wait()
        try:
            return self.objects[self.prefix + name][at : None if size is None else at + size]
        except KeyError:
            raise FileNotFoundError(name) from None

    def sizes(self, until: str | None = None) -> dict[str, int]:
        self._count("list")
        listed = [name for name in sorted(self.objects) if name not in self.late and name.startswith(self.prefix)]
        return {name.removeprefix(self.prefix): len(self.objects[name]) for name in listed}

    def names(self) -> list[str]:
        return list(self.sizes())

    def remove(self, *names: str) -> None:
        self._count("remove")
        for name in names:
            self.objects.pop(self.prefix + name, None)


def test_answers_come_in_order_and_only_so_many_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "AT_ONCE", 4)
    asked: list[int] = []

    def read(item: int) -> int:
        asked.append(item)
        return -item

    found = read_ahead(read, range(20))
    assert next(found) == 0
    assert set(asked) <= set(range(4)), "what nobody has taken is not gone beyond"
    assert list(found) == [-item for item in range(1, 20)]
    assert sorted(asked) == list(range(20))


def test_large_answers_are_few_and_one_too_large_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BYTES", 10)
    asked: list[int] = []
    found = read_ahead(asked.append, [3, 3, 3, 3, 50, 1], lambda item: item)
    next(found)
    assert len(asked) <= 3, "the fourth would be too much"
    list(found)
    assert sorted(asked) == [1, 3, 3, 3, 3, 50]


def test_what_fails_is_raised_at_its_place_and_nothing_is_asked_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "AT_ONCE", 4)
    asked: list[int] = []

    def read(item: int) -> int:
        asked.append(item)
        return 1 // item

    found = read_ahead(read, [1, 1, 0, *[1] * 100])
    assert [next(found), next(found)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert len(asked) <= 7


def test_the_heads_of_the_index_take_one_read_each() -> None:
    store = Counting()
    index = DedupIndex(store.below("ids/"), 10**9)
    for number in range(40):
        index.add(-1, to_batch([FakeMessage(number * known.FILE_ROWS + n, b"") for n in range(2)]))
        index._files[-1:] = [replace(file, rows=known.FILE_ROWS) for file in index._files[-1:]]  # full
        index.flush(number)
    store.asked.clear()
    again = DedupIndex(store.below("ids/"), 10**9)
    assert (again.open(), again.rows) == (39, 80)
    assert store.asked == {("list", "ids/"): 1, ("read", "ids/"): 40}


def test_a_head_of_the_index_longer_than_what_is_read_at_first_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "HEAD_READ", 20)
    store = Counting()
    index = DedupIndex(store.below("ids/"), 10**9)
    index.add(-1, to_batch([FakeMessage(1)]))
    index.flush(7)
    again = DedupIndex(store.below("ids/"), 10**9)
    assert (again.open(), again.rows) == (7, 1)
    assert again.fresh(-1, to_batch([FakeMessage(1)])).num_rows == 0
