from __future__ import annotations

import base64
import hashlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest

from gnsq_lite.supervise.status import KEEP, CachedPage, is_local_name, live_page
from tests.fakes import FakeClock


class Maker:
    """Makes pages with the bodies 1, 2, 3 and so on; waits first while *may_end* is not set."""

    def __init__(self, clock: FakeClock) -> None:
        self.made = 0
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.page = CachedPage(self.make, clock)

    def make(self) -> tuple[HTTPStatus, str, bytes]:
        self.begun.set()
        assert self.may_end.wait(60)
        self.made += 1
        return HTTPStatus.OK, "text/plain", b"%d" % self.made

    def get(self) -> bytes:
        return self.page.get()[2]


def test_a_page_is_cached_for_a_quarter_of_a_second() -> None:
    clock = FakeClock()
    maker = Maker(clock)
    assert [maker.get(), maker.get()] == [b"1", b"1"]
    clock.advance(KEEP * 0.9)
    assert maker.get() == b"1"
    clock.advance(KEEP * 0.2)
    assert maker.get() == b"2"


def test_clients_that_request_a_page_while_it_is_rendered_get_that_page() -> None:
    maker = Maker(FakeClock())
    maker.may_end.clear()
    with ThreadPoolExecutor(20) as pool:
        pending = [pool.submit(maker.page.get) for _ in range(20)]
        assert maker.begun.wait(60)
        maker.may_end.set()
        assert {each.result(60)[2] for each in pending} == {b"1"}


@pytest.mark.parametrize("host", ["127.0.0.1:9100", "10.1.2.3", "[::1]:9100", "localhost:9100", "LocalHost."])
def test_addresses_and_localhost_are_local_names(host: str) -> None:
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host",
    [None, "", ":9100", "evil.example", "127.0.0.1.evil.example:9100", "localhost.evil.example", "[evil]:1", "1"],
)
def test_another_host_name_is_not_local(host: str | None) -> None:
    assert not is_local_name(host)


def test_the_page_runs_its_own_script_and_style_and_nothing_else() -> None:
    body, policy = live_page()
    for kind in (b"script", b"style"):
        (inline,) = re.findall(rb"<%b>(.*?)</%b>" % (kind, kind), body, re.S)
        assert f"{kind.decode()}-src 'sha256-{base64.b64encode(hashlib.sha256(inline).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
