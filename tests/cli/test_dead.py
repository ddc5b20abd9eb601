"""``gnsq-lite dead``: poison messages of three kinds are found, grouped and redriven without code."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from gnsq_lite.worker import dead_topic
from gnsq_lite.worker.dead import Directory
from tests.cli.programs import call
from tests.letters import letter
from tests.programs import running, wait_for
from tests.servers import http_call

pytestmark = pytest.mark.program

APP = """
import os
from gnsq_lite import GiveUp, Worker

worker = Worker(max_attempts=2, requeue_delay=0.0, backoff=False, on_give_up=os.environ["STORE"])

@worker.handler("orders", "billing", concurrency=8, give_up_on=(ValueError,))
def bill(message):
    if "FIXED" in os.environ:
        return
    number = int(message.body)
    if number % 3 == 0:
        raise ValueError("no customer")
    if number % 3 == 1:
        raise KeyError("price")
    raise GiveUp("not today")
"""


@pytest.fixture
def nsqd() -> Iterator[Broker]:
    with Broker(lookupd=False) as broker:
        http_call(broker.http_address, "POST", "/topic/create?topic=orders")
        http_call(broker.http_address, "POST", "/channel/create?topic=orders&channel=billing")
        yield broker


def depth(nsqd: Broker) -> int:
    """Return how many messages wait in the channel, or are in flight."""
    (channel,) = next(
        topic["channels"]
        for topic in http_call(nsqd.http_address, "GET", "/stats?format=json").json()["topics"]
        if topic["topic_name"] == "orders"
    )
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def poison(folder: Path, nsqd: Broker, store: str, count: int) -> None:
    """Have a worker give up *count* messages of three kinds."""
    (folder / "app.py").write_text(APP, encoding="utf-8")
    bodies = b"\n".join(b"%d" % number for number in range(count))
    assert http_call(nsqd.http_address, "POST", "/mpub?topic=orders", bodies).status == 200
    run_worker(folder, nsqd, {"STORE": store})


def run_worker(folder: Path, nsqd: Broker, env: dict[str, str]) -> None:
    """Run the worker until the channel is empty."""
    arguments = ["-m", "gnsq_lite", "worker", "app", "--nsqd-tcp-address", nsqd.nsqd_tcp_address]
    with running(arguments, folder, env) as program:
        program.says("connected")
        wait_for(lambda: depth(nsqd) == 0)


def dead(folder: Path, nsqd: Broker, *arguments: str, code: int = 0) -> str:
    """Run ``gnsq-lite dead`` in *folder*, in this process; return what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended, out, err = call("dead", *arguments, "--nsqd-tcp-address", nsqd.nsqd_tcp_address)
    assert ended == code, out + err
    return out + err


@pytest.mark.timeout(300)
def test_letters_are_grouped_and_retried(nsqd: Broker, tmp_path: Path) -> None:
    poison(tmp_path, nsqd, "directory:letters", 100)
    found = json.loads(dead(tmp_path, nsqd, "list", "letters", "--group-by", "error", "--json"))
    assert found == {"ValueError": 34, "KeyError": 33, "GiveUp": 33}
    assert "34 letters would be published" in dead(
        *(tmp_path, nsqd, "retry", "letters", "--error", "ValueError", "--dry-run")
    )
    assert len(list((tmp_path / "letters").iterdir())) == 100
    one = json.loads(dead(tmp_path, nsqd, "list", "letters", "--error", "KeyError", "--limit", "1", "--json"))
    assert (one["attempts"], one["error"]) == (2, "'price'")
    table = dead(tmp_path, nsqd, "list", "letters", "--error", "KeyError", "--limit", "1")
    key = table.splitlines()[1].split()[0]
    assert one["letter_id"] == key
    shown = dead(tmp_path, nsqd, "show", "letters", key)
    assert "KeyError: 'price'" in shown
    assert 'raise KeyError("price")' in shown
    assert "33 letters deleted" in dead(tmp_path, nsqd, "drop", "letters", "--error", "GiveUp")
    assert "orders: 67 letters published" in dead(tmp_path, nsqd, "retry", "letters", "--since", "1h")
    assert list((tmp_path / "letters").iterdir()) == []
    assert depth(nsqd) == 67
    run_worker(tmp_path, nsqd, {"STORE": "directory:letters", "FIXED": "1"})
    assert list((tmp_path / "letters").iterdir()) == []


@pytest.mark.timeout(300)
def test_a_retry_that_is_killed_loses_no_letter(nsqd: Broker, tmp_path: Path) -> None:
    poison(tmp_path, nsqd, "directory:letters", 200)
    folder = tmp_path / "letters"
    for _ in range(3):
        left = len(list(folder.iterdir()))
        words = ["-m", "gnsq_lite", "dead", "retry", "letters", "--rate", "100/s"]
        with running(words, tmp_path) as program:
            wait_for(lambda most=left - 10: len(list(folder.iterdir())) <= most)  # type: ignore[misc]
            program.process.kill()
            program.ends()
        # Each kill may fall between nsqd's OK and the removal of the file: then one more is there twice.
    assert 0 < len(list(folder.iterdir())) < 200
    dead(tmp_path, nsqd, "retry", "letters")
    assert list(folder.iterdir()) == []
    assert 200 <= depth(nsqd) <= 203


@pytest.mark.timeout(300)
def test_letters_of_a_topic_are_listed_retried_and_dropped(nsqd: Broker, tmp_path: Path) -> None:
    poison(tmp_path, nsqd, "topic:orders.dead", 30)
    groups = ["list", "topic:orders.dead", "--group-by", "error", "--json"]
    assert Counter(json.loads(dead(tmp_path, nsqd, *groups))) == {"ValueError": 10, "KeyError": 10, "GiveUp": 10}
    assert "10 letters published" in dead(tmp_path, nsqd, "retry", "topic:orders.dead", "--error", "KeyError")
    assert json.loads(dead(tmp_path, nsqd, *groups)) == {"ValueError": 10, "GiveUp": 10}
    assert "20 letters deleted" in dead(tmp_path, nsqd, "drop", "topic:orders.dead", "--all")
    assert json.loads(dead(tmp_path, nsqd, *groups)) == {}
    assert depth(nsqd) == 10


GONE = "127.0.0.1:1"


@pytest.mark.timeout(300)
def test_an_nsqd_that_is_gone_is_named_and_the_letters_of_the_other_are_treated(
    nsqd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_topic, "_CONNECT_TIMEOUT", 2.0)
    both = ["topic:dead", "--nsqd-tcp-address", GONE]
    letters = [letter(number, nsqd.nsqd_tcp_address) for number in range(6)]
    lines = b"\n".join(each.to_json() for each in letters)
    for words, said in (
        (["list", *both, "--group-by", "topic", "--json"], '{"orders/c": 6}'),
        (["drop", *both, "--all"], "orders: 6 letters deleted"),
        (["retry", *both], "orders: 6 letters published"),
    ):
        if words[0] != "drop":  # the list leaves the letters for it
            assert http_call(nsqd.http_address, "POST", "/mpub?topic=dead", lines).status == 200
        out = dead(tmp_path, nsqd, *words, code=1)
        assert said in out
        assert f"{GONE}: no connection within 2 s, so its letters of dead were not read" in " ".join(out.split())
    assert depth(nsqd) == 6


def test_letters_whose_own_nsqd_is_gone_stay_and_are_counted(
    nsqd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsq_lite.worker.redrive.Writer", partial(Writer, publish_timeout=4.0))
    store = Directory(tmp_path / "letters")
    for number in range(6):
        store.keep(letter(number, GONE if number % 2 else nsqd.nsqd_tcp_address))
    ended, out, err = call("dead", "retry", str(tmp_path / "letters"))
    assert (ended, out) == (1, "orders: 3 letters published\n")
    assert f"3 letters of {GONE} stay, because it cannot be reached: --nsqd-tcp-address publishes" in " ".join(
        err.split()
    )
    assert "orders: 3 letters published" in dead(tmp_path, nsqd, "retry", "letters")
    assert list((tmp_path / "letters").iterdir()) == []


def test_letters_are_listed_newest_first_and_selected_by_task_and_class(nsqd: Broker, tmp_path: Path) -> None:
    store = Directory(tmp_path / "letters")
    for number, error in enumerate(("KeyError", "Shop.PriceError", "KeyError", "")):
        body = json.dumps({"task": f"shop.tasks.{'mail' if number % 2 else 'charge'}"}).encode()
        given_up = 1e9 + (7 * number) % 4
        own = replace(letter(number, GONE), body=body, error_type=error, given_up_at=given_up)
        store.keep(own)

    def ids(*words: str) -> list[int]:
        lines = dead(tmp_path, nsqd, "list", "letters", "--json", *words).splitlines()
        return [int(bytes.fromhex(json.loads(line)["id"])) for line in lines]

    assert ids() == [1, 2, 3, 0]  # given up at 3, 2, 1 and 0 s
    assert ids("--limit", "2") == [1, 2]
    table = [line.split()[0] for line in dead(tmp_path, nsqd, "list", "letters", "--limit", "2").splitlines()[1:]]
    assert table == [each.key for number in (1, 2) for each in store.letters() if int(each.id) == number]
    for words, found in (
        (["--error", "KeyError"], [2, 0]),
        (["--error", "builtins.KeyError"], [2, 0]),
        (["--error", "PriceError"], [1]),
        (["--error", "Error"], []),
        (["--task", "mail"], [1, 3]),
        (["--task", "shop.tasks.charge"], [2, 0]),
        (["--task", "arge"], []),
        (["--task", "x.mail"], []),
    ):
        assert ids(*words) == found
    groups = json.loads(dead(tmp_path, nsqd, "list", "letters", "--group-by", "task", "--json"))
    assert groups == {"shop.tasks.charge": 2, "shop.tasks.mail": 2}


def edit(file: Path, **fields: object) -> None:
    """Change fields of a letter, as a person with an editor would."""
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **fields}), encoding="utf-8")


def test_a_letter_whose_topic_was_corrected_is_published_once_and_removed(nsqd: Broker, tmp_path: Path) -> None:
    store = Directory(tmp_path / "letters")
    for number in range(2):
        store.keep(letter(number, nsqd.nsqd_tcp_address))
    file = min((tmp_path / "letters").iterdir())
    key = next(store.letters()).key
    edit(file, topic="repaired")
    assert next(store.letters()).key == key
    assert dead(tmp_path, nsqd, "retry", "letters") == "orders: 1 letters published\nrepaired: 1 letters published\n"
    assert dead(tmp_path, nsqd, "retry", "letters") == "0 letters published\n"
    assert list((tmp_path / "letters").iterdir()) == []


@pytest.mark.parametrize("command", ["list", "show", "retry", "drop"])
def test_files_that_are_no_letters_cost_one_line_each_and_stay(nsqd: Broker, tmp_path: Path, command: str) -> None:
    folder, outside = tmp_path / "letters", tmp_path / "outside.json"
    store = Directory(folder)
    for number in range(9):
        store.keep(letter(number, nsqd.nsqd_tcp_address))
    files = sorted(folder.iterdir())
    outside.write_bytes(files[0].read_bytes())
    wrong: dict[str, object] = {
        "topic": 5,
        "channel": ["x"],
        "attempts": "many",
        "given_up_at": float("nan"),
        "more": 1,
    }
    for file, (name, value) in zip(files, [*wrong.items(), ("given_up_at", 1e30), ("\x1b[2J", 1)], strict=False):
        edit(file, **{name: value})
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "fifo.json")
    (folder / "link.json").symlink_to(outside)
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "\x1b[31mdeep.json").write_bytes(b"[" * 200_000)
    edit(files[8], topic="[/red]\x1b[2J\n", error="[/x] \x9b", host="\ud800")
    key = {file: each.key for each in store.letters() for file in files if file.stem == each.stored}[files[8]]
    before = set(folder.iterdir())
    words = {"list": ["list", str(folder)], "show": ["show", str(folder), key], "drop": ["drop", str(folder), "--all"]}
    code, out, err = call("dead", *words.get(command, ["retry", str(folder)]))
    lines = [line for line in err.splitlines() if ".json: this is not" in line]
    assert not any(ord(character) < 32 and character != "\n" for character in out + err)
    assert (len(lines) < len(err.splitlines())) == (command == "retry")
    gone = {"retry": {files[7]}, "drop": {files[7], files[8]}}.get(command, set())
    assert (set(folder.iterdir()), outside.exists()) == (before - gone, True)
    if command != "show":  # it ends at the letter
        assert len(lines) == 12
    if command == "list":
        assert len(out.splitlines()) == 3
    assert code == (command == "retry")  # the topic "[/red]..." cannot exist


@pytest.mark.parametrize(
    ("letter", "words", "status", "said"),
    [
        (b"x", ["bodies:letters"], 2, "would retry its letters into itself"),
        (b"x", ["topic:letters", "--to", "letters"], 2, "would retry its letters into itself"),
        (b"not a letter", ["topic:letters"], 1, "names the store's topic letters"),
    ],
    ids=["bodies", "to", "foreign message"],
)
def test_a_retry_into_the_topic_that_stores_the_letters_publishes_nothing(
    nsqd: Broker, letter: bytes, words: list[str], status: int, said: str
) -> None:
    assert http_call(nsqd.http_address, "POST", "/pub?topic=letters", letter).status == 200
    status_seen, out, err = call("dead", "retry", *words, "--nsqd-tcp-address", nsqd.nsqd_tcp_address)
    assert status_seen == status
    assert said in " ".join((out + err).split())
    (topic,) = http_call(nsqd.http_address, "GET", "/stats?format=json&topic=letters").json()["topics"]
    assert topic["message_count"] == 1


def test_wrong_usage_is_refused_and_letters_stay_while_no_nsqd_is_reachable(
    nsqd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(tmp_path, nsqd, "directory:letters", 3)
    monkeypatch.chdir(tmp_path)
    for words, code, shown in (
        (["list", "directory:nowhere"], 2, "there is no directory 'nowhere'"),
        (["list", "nowhere"], 2, "is not one of directory:PATH"),
        (["drop", "letters"], 2, "select letters, or give --all"),
        (["show", "letters", "x"], 1, "no letter has the id"),
        (["list", "django"], 2, "DJANGO_SETTINGS_MODULE is not set"),
    ):
        ended, _, err = call("dead", *words)
        assert ended == code
        assert shown in err
    words = ["-m", "gnsq_lite", "dead", "retry", "letters", "--nsqd-tcp-address", "127.0.0.1:1"]
    with running(words, tmp_path) as program:
        assert program.ends() == 1
    assert len(list((tmp_path / "letters").iterdir())) == 3
