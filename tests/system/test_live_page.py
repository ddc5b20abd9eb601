"""The live page in a real browser: hostile texts, many nsqds, rates, a process that dies."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite.supervise.status import StatusServer, Verdict
from tests.devtools import Browser, Page, browsing
from tests.livedata import STATES, StatePages, document, handler, nsqd, process

HOSTILE = '</script><script>window.owned=1</script><img src=x onerror="window.owned=1">\'"&\u202e\x00\ud800'


class Pages:
    """Show the state that the test sets."""

    def __init__(self) -> None:
        self.shown: Callable[[], dict[str, Any]] = document

    def metrics(self) -> tuple[str, bytes]:
        return "text/plain", b"up 1\n"

    def health(self) -> Verdict:
        return True, {}

    ready = health

    def live(self, brief: bool) -> dict[str, Any]:
        return copy.deepcopy(self.shown())

    def history(self) -> dict[str, Any]:
        return {"samples": []}

    def running(self) -> dict[str, Any]:
        return {"calls": [], "silent": []}


class InState(StatePages, Pages):
    """Shows a state of a worker."""

    def __init__(self, name: str) -> None:
        StatePages.__init__(self, name)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Page:
    return browser.page()


def serve(pages: Pages) -> str:
    server = StatusServer(pages, ("127.0.0.1", 0)).start()
    return f"http://127.0.0.1:{server.port}/"


def is_whole(page: Page) -> None:
    assert page.overflow() == 0
    assert page.complaints() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desk", "phone"])
def test_hostile_texts_are_shown_and_nothing_of_them_runs(page: Page, width: int, dark: bool) -> None:
    pages = Pages()
    error = {"type": HOSTILE, "text": HOSTILE * 3, "at": 1.0, "count": 5, "message": HOSTILE, "process": 0}
    shown = document(
        handlers=[
            handler(HOSTILE, channel=HOSTILE, name=HOSTILE, state=HOSTILE, errors=[error], failures=5),
            handler("__proto__", channel="constructor"),
        ],
        processes=[process(0, state=HOSTILE, why=HOSTILE)],
        nsqds=[nsqd(HOSTILE, HOSTILE)],
        unavailable=[{"address": HOSTILE, "topic": HOSTILE, "channel": HOSTILE, "why": HOSTILE}],
    )
    pages.shown = lambda: shown
    page.open(serve(pages), width=width, dark=dark)
    page.wait_for("document.querySelectorAll('.card').length === 2")
    page.value("document.querySelector('.errors').open = true")
    page.wait_for("document.querySelector('.errors .error').innerText.includes('<script>window.owned=1</script>')")
    assert page.value("window.owned") is None
    assert page.value("document.querySelectorAll('img, iframe, main script').length") == 0
    is_whole(page)


@pytest.mark.timeout(300)
def test_a_script_that_came_in_all_the_same_would_not_run(page: Page) -> None:
    page.open(serve(Pages()))
    page.wait_for("document.getElementById('state').textContent === 'running'")
    page.value(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
        " document.body.append(s); const d = document.createElement('div');"
        " d.innerHTML = '<img src=x onerror=\"window.owned=1\">'; document.body.append(d); })()"
    )
    page.wait_for("true")
    assert page.value("new Promise(done => setTimeout(() => done(window.owned), 200))") is None
    assert any("Content Security Policy" in text for text in page.complaints())


@pytest.mark.timeout(300)
def test_a_thousand_nsqds_are_shown_a_hundred_at_a_time_and_each_is_found(page: Page) -> None:
    pages = Pages()
    shown = document(
        handlers=[handler("t", connections=1000, ready=5000)],
        processes=[process(0)],
        nsqds=[nsqd(f"10.0.{number // 250}.{number % 250}:4150", "t", number) for number in range(1000)],
    )
    pages.shown = lambda: shown
    page.open(serve(pages), width=390)
    page.wait_for("document.querySelectorAll('#nsqds tr').length === 101")
    assert "900 more" in page.text()
    assert page.value("document.querySelector('#nsqds tr:nth-child(2)').innerText").endswith("999")
    page.value("document.getElementById('filter').value = '10.0.3.249'; document.getElementById('filter').oninput()")
    page.wait_for("document.querySelectorAll('#nsqds tr').length === 2")
    assert page.value("document.getElementById('totals').innerText").count("499.5K") == 1
    is_whole(page)


@pytest.mark.timeout(300)
def test_the_page_goes_on_while_a_process_dies_and_comes_back_and_while_nobody_answers(page: Page) -> None:
    pages = Pages()
    runs = document(handlers=[handler("t")], processes=[process(0), process(1)])
    dead = document(handlers=[handler("t")], processes=[process(0), process(1, pid=None, state="ended")])
    again = document(handlers=[handler("t")], processes=[process(0), process(1, restarts=1)])
    pages.shown = lambda: runs
    page.open(serve(pages))
    page.wait_for("document.getElementById('state').textContent === 'running'")
    pages.shown = lambda: dead
    page.wait_for("document.getElementById('state').textContent === '1 of 2 processes run'")
    page.wait_for("document.querySelector('#processes tr:nth-child(3)').innerText.includes('ended')")

    def fails() -> dict[str, Any]:
        raise ValueError(HOSTILE[:20])

    pages.shown = fails
    page.wait_for("document.body.classList.contains('stale') && !document.getElementById('note').hidden")
    pages.shown = lambda: again
    page.wait_for("document.getElementById('state').textContent === 'running'")
    assert page.value("document.querySelector('#processes tr:nth-child(3) td:last-child').innerText") == "1"
    assert page.value("document.getElementById('note').hidden")
    line = page.wait_for("document.querySelector('path.rate').getAttribute('d')")
    assert line.count("L") >= 2


@pytest.mark.timeout(300)
def test_counts_become_rates_and_a_restart_shows_no_negative_rate(page: Page) -> None:
    pages, seconds = Pages(), itertools.count()
    counts = itertools.chain((100, 130, 160, 0), itertools.repeat(0))

    def shown() -> dict[str, Any]:
        finished = next(counts)
        made = document(handlers=[handler("t", finished=finished)], processes=[process(0, finished=finished)])
        return {**made, "at": 1000.0 + next(seconds)}

    pages.shown = shown
    page.open(serve(pages))
    page.wait_for("document.querySelector('.card .big b')?.innerText === '30'")
    assert page.value("document.querySelector('#processes tr:nth-child(2)').innerText").split("\t")[4] == "30"
    page.wait_for("document.querySelector('.card .big b').innerText === '0'")


@pytest.mark.timeout(300)
def test_handlers_that_do_not_end_while_messages_wait_are_shown_in_red(page: Page) -> None:
    pages = Pages()
    hung = handler("hung", handlers_running=4, queued=192, oldest_handler=600.0)
    slow = handler("slow", handlers_running=4, concurrency=16, queued=0, oldest_handler=600.0)
    pages.shown = lambda: document(handlers=[hung, slow], processes=[process(0)])
    page.open(serve(pages))
    page.wait_for("document.getElementById('state').textContent === '1 handler in trouble'")
    pills = "[...document.querySelectorAll('.card .pill')].map(p => p.className + ': ' + p.textContent)"
    assert page.value(pills) == ["pill bad: handlers run for 10 min", "pill warn: handlers run for 10 min"]


#: By state: the page's pill, the pills of the cards in their order on the page, and texts on the page.
SHOWN: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "calm": (
        "running",
        {"orders": "connected", "pictures": "connected", "mail": "connected"},
        ("RDY 4 on 4 connections",),
    ),
    "backlog": (
        "running",
        {"orders": "connected", "pictures": "connected", "mail": "connected"},
        ("waiting, growing 8/s", "waiting, empty in 4 min"),
    ),
    "failing": (
        "1 handler in trouble",
        {"mail": "backoff", "orders": "connected", "pictures": "connected"},
        ("level 8, 1 min left", "RDY 0 on 4 connections", "SMTPServerDisconnected: Connection unexpectedly closed"),
    ),
    "hung": (
        "1 handler in trouble",
        {"orders": "handlers run for 12 min", "pictures": "handlers run for 1 min", "mail": "connected"},
        ("64 running, the oldest for 12 min", "7 running, the oldest for 1 min", "320 waiting"),
    ),
    "giving-up": (
        "1 handler gives messages up",
        {"mail": "gives messages up", "orders": "connected", "pictures": "connected"},
        ("given up, kept in topic:mail_dead", "gnsq-lite dead list topic:mail_dead", "KeyError: 'address'"),
    ),
    "nsqd-gone": (
        "1 nsqd not connected",
        {"orders": "connected", "pictures": "connected", "mail": "connected"},
        ("not connected", "Connection refused", "RDY 4 on 3 connections"),
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
@pytest.mark.parametrize("state", STATES)
def test_each_state_of_a_worker_is_shown_whole_with_troubled_handlers_first(page: Page, state: str, width: int) -> None:
    told, cards, texts = SHOWN[state]
    page.open(serve(InState(state)), width=width)
    page.wait_for(f"document.getElementById('state').textContent === {json.dumps(told)}")
    for text in texts:
        page.wait_for(f"document.body.innerText.includes({json.dumps(text)})")
    place = "((box) => box.top * 10000 + box.left)(each.getBoundingClientRect())"
    read = "[each.querySelector('b').textContent.split(' ')[0], each.querySelector('.pill').textContent]"
    found = page.value(f"[...document.querySelectorAll('.card')].map(each => [{place}, {read}])")
    assert [shown for _, shown in sorted(found)] == [list(each) for each in cards.items()]
    starts = page.value("[...document.querySelectorAll('path.rate')].map(each => each.getAttribute('d').split(' ')[0])")
    assert [abs(float(each[1:])) for each in starts] == [0.0] * 3
    assert page.text().count("10 min\n") >= 3
    parts = "[...document.querySelectorAll('.table, .card, .card *, .pill')].filter(each => each.clientWidth)"
    assert page.value(f"{parts}.filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText)") == []
    depth = page.value("document.querySelector('#nsqds th:last-child').getBoundingClientRect().right")
    assert 0 < depth <= width
    is_whole(page)


def test_the_file_is_self_contained() -> None:
    text = (Path(__file__).parents[2] / "gnsq_lite/supervise/live.html").read_text(encoding="utf-8")
    assert "innerHTML" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert not any(word in text for word in ("<link", "<img", "@import", "src="))
