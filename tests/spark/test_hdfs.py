"""What the spool's HDFS does when the library, or the NameNode, does not do as it should."""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.errors import MissingExtra, OptionError
from gnsq_lite.spark.hdfs import SPARED, HdfsStore, settings
from tests.fakes import FakeClock
from tests.spark.hadoop import JARS, Hdfs

HOUR = 3_600_000


class Panic(BaseException):
    """What the library raises for a defect of its own."""


class FakeFile:
    """A file that is read."""

    def __init__(self, client: FakeClient, data: bytes) -> None:
        self._client, self._data = client, data

    def __len__(self) -> int:
        return len(self._data)

    def read(self) -> bytes:
        return self._data

    def read_range(self, at: int, size: int) -> bytes:
        self._client._begin("range")
        assert at + size <= len(self._data), "the library panics"
        return self._data[at : at + size]


class FakeClient:
    """Files by path, of which each knows when it was written; *trouble* runs before a call of that name."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        #: Copies wanted of a file, and those its content was sent to.
        self.copies: dict[str, int] = {}
        self.sent_to: list[int] = []
        self.now = 10 * HOUR
        self.trouble: dict[str, Callable[[], object]] = {}

    def _begin(self, call: str) -> None:
        self.trouble.get(call, lambda: None)()

    def create(self, path: str, options: Any) -> Any:
        self._begin("create")
        written: list[bytes] = []
        self.copies[path] = 3

        def hsync() -> None:
            self.sent_to.append(self.copies[path])
            self._begin("hsync")

        def close() -> None:
            self._begin("close")
            self.files[path] = (b"".join(written), self.now)

        return SimpleNamespace(write=written.append, hsync=hsync, close=close)

    def mkdirs(self, path: str, create_parent: bool) -> None:
        assert create_parent

    def rename(self, source: str, target: str, replace: bool) -> None:
        self._begin("rename")
        if source not in self.files:
            raise FileNotFoundError(f"rename source {source} is not found")
        if target in self.files and not replace:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)
        self.copies[target] = self.copies.pop(source)
        self._begin("renamed")

    def read(self, path: str) -> Any:
        self._begin("read")
        if path not in self.files:
            raise FileNotFoundError(path)
        return FakeFile(self, self.files[path][0])

    def get_file_info(self, path: str) -> Any:
        written = self.files[path][1] if path in self.files else self.now
        return SimpleNamespace(modification_time=written, replication=self.copies.get(path))

    def set_replication(self, path: str, copies: int) -> bool:
        self.copies[path] = copies
        return True

    def list_status(self, path: str, recursive: bool) -> Any:
        self._begin("list")
        below = [name for name in self.files if name.startswith(path + "/")]
        return [SimpleNamespace(path=name, modification_time=self.files[name][1]) for name in below]

    def delete(self, path: str, recursive: bool) -> bool:
        return self.files.pop(path, None) is not None


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(client: FakeClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> HdfsStore:
    monkeypatch.setattr(HdfsStore, "_opened", lambda self: self._client or setattr(self, "_client", client) or client)
    return HdfsStore("hdfs://n:8020/spool", {}, limit=20.0, clock=clock, sleep=clock.advance).below("log/")


def raised(error: BaseException) -> Callable[[], None]:
    def trouble() -> None:
        raise error

    return trouble


def test_settings_are_hadoops_by_name() -> None:
    assert settings({"dfs.client.socket-timeout": "1", "fs.defaultFS": "x"})["dfs.client.socket-timeout"] == "1"
    with pytest.raises(OptionError, match="Hadoop's names"):
        settings({"region": "x"})


@pytest.mark.parametrize("url", ["hdfs://no-such-service/x", "hdfs:///x", "hdfs://127.0.0.1/x"])
def test_a_name_node_that_nothing_names_is_refused_at_load(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gnsq_lite.spark.source import NsqDataSource

    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    given = {"topic": "t", "channel": "c", "nsqdTCPAddresses": "n:4150", "spoolDir": url}
    with pytest.raises(OptionError, match="HDFS refuses its settings: "):
        NsqDataSource(given).schema()
    assert NsqDataSource({**given, "spoolDir": "hdfs://n:8020/x"}).schema().startswith("topic")


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "hdfs_native":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match="spark-hdfs"):
        HdfsStore("hdfs://n:8020/x", {}).check()


def test_a_client_stays_with_its_process(store: HdfsStore) -> None:
    store.create("1", b"x")
    store._care.until = 1e9
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.url, copy._prefix, copy._client, copy._care.until) == (store.url, store._prefix, None, None)


@pytest.mark.rule("PIPE-2")
@pytest.mark.parametrize("call", ["create", "hsync", "close", "rename"])
@pytest.mark.parametrize("error", [RuntimeError("SafeModeException\n at x"), Panic("past the end"), OSError("refused")])
def test_what_fails_on_the_way_is_an_oserror_and_leaves_nothing(
    store: HdfsStore, client: FakeClient, call: str, error: BaseException
) -> None:
    client.trouble[call] = raised(error)
    with pytest.raises(OSError, match=f"hdfs://n:8020/spool/log/1: {str(error).splitlines()[0]}$"):
        store.create("1", b"data")
    assert client.files == {}


@pytest.mark.parametrize("call", ["nothing", "hsync", "close", "rename"])
def test_nobody_but_the_store_closes_a_file(
    store: HdfsStore, client: FakeClient, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: set[str] = set()

    class Written(io.RawIOBase):  # as the library's: Python closes it when it collects it, unless it is told
        def __init__(self, inner: Any) -> None:
            self.write, self.hsync, self.inner = inner.write, inner.hsync, inner

        def close(self) -> None:
            callers.add(sys._getframe(1).f_code.co_name)
            self.inner.close()

    create = client.create
    monkeypatch.setattr(client, "create", lambda path, options: Written(create(path, options)))

    def gone() -> None:
        raise RuntimeError("the NameNode is gone")

    client.trouble[call] = gone
    with contextlib.suppress(OSError):
        store.create("1", b"data")
    gc.collect()
    assert callers <= {"_fill"}


@pytest.mark.rule("PIPE-2")
def test_a_data_node_that_died_is_written_around_with_one_copy_until_it_is_named_no_more(
    store: HdfsStore, client: FakeClient, clock: FakeClock
) -> None:
    left = 3

    def dead() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise RuntimeError("Connection refused")

    client.trouble["hsync"] = dead
    store.create("1", b"data")
    assert client.sent_to == [3, 3, 1, 1]
    store.below("x/").create("2", b"data")
    clock.advance(SPARED)
    left = 1  # it is still named
    store.create("3", b"data")
    clock.advance(SPARED)
    store.create("4", b"data")
    left = 1
    store.create("5", b"data")
    assert client.sent_to[4:] == [1, 3, 1, 3, 3, 3]
    assert len(client.files) == 5, "nothing was left aside"
    assert {client.copies[name] for name in client.files} == {3}, "the NameNode makes the others"


def test_a_read_that_a_data_node_leaves_unanswered_is_asked_for_again(
    store: HdfsStore, client: FakeClient, clock: FakeClock
) -> None:
    store.create("1", b"some data")
    held = threading.Event()
    client.trouble["range"] = lambda: client.trouble.clear() or held.wait()
    store._limit = 0.05
    try:
        assert store.read("1", 5) == b"data"
        client.trouble["range"] = lambda: clock.advance(0.1) or held.wait()
        with pytest.raises(TimeoutError, match=r"log/1: no answer within 0\.05 s"):
            store.read("1")
    finally:
        held.set()
    store._limit = 20.0
    client.trouble.clear()
    assert (store.read("1", 0, 4), store.read("1", 9), store.read("1", 20, 4)) == (b"some", b"", b"")


def test_a_large_file_has_more_time_and_none_has_more_than_the_limit(
    store: HdfsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    call = HdfsStore._call

    def noted(self: HdfsStore, name: str, do: Any, limit: float | None = None) -> Any:
        limits.append(limit)
        return call(self, name, do, limit)

    monkeypatch.setattr(HdfsStore, "_call", noted)
    for size in (0, 10 * 1_000_000, 200 * 1_000_000):
        store.write("1", bytes(size))
    assert limits == [10.0, 15.0, 20.0]


def test_a_rename_whose_answer_was_lost_counts_once(store: HdfsStore, client: FakeClient) -> None:
    def again() -> None:
        """As the library sends it a second time."""
        client.trouble.clear()
        raise FileNotFoundError("rename source is not found")

    for call in (store.create, store.write):
        client.trouble["renamed"] = again
        call("1", b"data")
        assert client.files["/spool/log/1"][0] == b"data"
    with pytest.raises(FileExistsError):
        store.create("1", b"other")
    client.trouble["rename"] = again
    with pytest.raises(OSError, match="rename source is not found"):
        store.write("1", b"other")
    assert list(client.files) == ["/spool/log/1"]


@pytest.mark.rule("PIPE-2")
def test_a_call_without_an_answer_ends_and_does_nothing_later(store: HdfsStore, client: FakeClient) -> None:
    held, gone_on = threading.Event(), threading.Event()
    client.trouble["hsync"] = held.wait
    late = client.delete

    def delete(path: str, recursive: bool) -> bool:
        try:
            return late(path, recursive)
        finally:
            gone_on.set()

    client.delete = delete  # type: ignore[method-assign]
    store._limit = 0.05
    with pytest.raises(TimeoutError, match=r"log/1: no answer within 0\.05 s"):
        store.create("1", b"data")
    held.set()
    assert gone_on.wait(30)
    assert client.files == {}, "it was not renamed, and is not left aside"


def test_many_files_are_removed_by_calls_that_each_keep_the_limit(
    store: HdfsStore, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(number) for number in range(250)]
    client.files = {store._path(name): (b"", 0) for name in names}
    calls: list[str] = []
    whole = HdfsStore._call

    def noted(self: HdfsStore, name: str, do: Any, limit: float | None = None) -> Any:
        calls.append(name)
        return whole(self, name, do, limit)

    monkeypatch.setattr(HdfsStore, "_call", noted)
    store.remove(*names)
    assert (sorted(calls), client.files) == (["0", "100", "200"], {})
    store.remove()


def test_what_killed_processes_left_aside_is_swept_once(
    store: HdfsStore, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.files = {"/spool/aside/old": (b"", client.now - 2 * HOUR), "/spool/aside/new": (b"", client.now - 60_000)}
    store.create("1", b"data")
    assert sorted(client.files) == ["/spool/aside/new", "/spool/log/1"]
    client.trouble["list"] = raised(RuntimeError("away"))
    store.create("2", b"data")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        store.below("x/").create("3", b"data")
    assert "cannot be swept: away" in caplog.text


if JARS:

    @pytest.fixture
    def hdfs(tmp_path: Path) -> Iterator[Hdfs]:
        made = Hdfs(tmp_path)
        yield made
        made.kill()

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    @pytest.mark.rule("PIPE-2")
    def test_a_name_node_that_stops_answering_ends_a_write_which_then_is_there_whole_or_not_at_all(hdfs: Hdfs) -> None:
        store = HdfsStore(hdfs.options("x")["spoolDir"], settings({})).below("log/")
        store.create("1", b"before")
        store._limit = 3.0
        hdfs.pause("name")
        with pytest.raises(TimeoutError):
            store.create("2", b"data")
        with pytest.raises(TimeoutError):
            store.names()
        hdfs.go_on("name")
        store._limit = 60.0
        try:
            store.create("2", b"data")
        except FileExistsError:  # the first one was done after all
            pass
        assert store.read("2") == b"data"
        assert store.names() == ["1", "2"]
        hdfs.kill("data")
        with pytest.raises(OSError, match="log/3"):
            store.create("3", b"data")
        hdfs.start()
        hdfs.until_it_writes()
        store.create("3", b"data")
        assert store.sizes() == {"1": 6, "2": 4, "3": 4}
