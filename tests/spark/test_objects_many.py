"""A spool on a store in which very much waits: what a plan costs is what its batch has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnsq_lite.recording.objectstore import ObjectStore
from gnsq_lite.spark.objectlog import Entry, ObjectLog, key
from gnsq_lite.spark.objectspool import ObjectSpool
from gnsq_lite.spark.spoolmeta import DataLoss

PAGE, WAITING = 1000, 5000


class MemoryStore(ObjectStore):
    """obstore's own, which lists in order."""

    def _opened(self) -> Any:
        from obstore.store import MemoryStore

        if self._store is None:
            self._store = MemoryStore()
        return self._store


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many names each answer to a listing had."""
    import obstore

    listed, found = obstore.list, []

    def counted(*args: Any, **more: Any) -> Iterator[Any]:
        for page in listed(*args, **more):
            found.append(len(page))
            yield page

    monkeypatch.setattr(obstore, "list", counted)
    return found


@pytest.fixture
def spool() -> Iterator[ObjectSpool]:
    log = ObjectLog(MemoryStore("memory://", {}))
    store = log.store.below("log/")
    for number in range(1, WAITING + 1):
        store.create(key(number), Entry(number, 1, 1, -1, 1, 0, b"w" * 16).pack() + b"x")
    made = ObjectSpool(log, "t", "c")
    made.open(0.0)
    yield made
    made.close()


@pytest.mark.rule("PIPE-3")
def test_a_plan_lists_what_its_batch_has_and_not_all_that_waits(spool: ObjectSpool, pages: list[int]) -> None:
    pages.clear()
    assert [s.number for s in spool.located(0, 10, complete=True)] == list(range(1, 11))
    assert pages == [PAGE]
    spool.commit(2500)
    pages.clear()
    assert [s.number for s in spool.located(2500, 2510, complete=True)] == list(range(2501, 2511))
    assert pages == [PAGE]
    pages.clear()
    assert len(spool.located(2500, WAITING, complete=True)) == WAITING - 2500
    assert sum(pages) >= WAITING - 2500


def test_what_is_gone_is_told_by_the_plan_as_before(spool: ObjectSpool) -> None:
    spool._log.store.below("log/").remove(key(3), key(7))
    with pytest.raises(DataLoss, match=r"lacks 2 objects of \(0, 10\], 3 for one"):
        spool.located(0, 10, complete=True)
    assert [s.number for s in spool.located(0, 10, complete=False)] == [1, 2, 4, 5, 6, 8, 9, 10]


def test_a_store_without_an_order_lacks_nothing(spool: ObjectSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    listed = obstore.list
    monkeypatch.setattr(obstore, "list", lambda *args, **more: list(listed(*args, **more))[::-1])
    spool._log.store.below("log/").remove(key(3))
    with pytest.raises(DataLoss, match=r"lacks 1 objects of \(0, 10\], 3 for one"):
        spool.located(0, 10, complete=True)
    assert [s.number for s in spool.located(3, 10, complete=True)] == list(range(4, 11))
