"""A page is made once for many, with the clock in hand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from gnsq_lite.supervise.shared_page import KEEP, SharedPage
from tests.fakes import FakeClock


class Maker:
    """Makes 1, 2, 3 and so on; waits first where it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        self.made = 0
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.page = SharedPage(self.make, clock)

    def make(self) -> int:
        self.begun.set()
        assert self.may_end.wait(60)
        self.made += 1
        return self.made

    def hold(self) -> None:
        self.begun.clear()
        self.may_end.clear()


def test_a_page_is_kept_for_a_moment_and_made_again_after_it() -> None:
    clock = FakeClock()
    maker = Maker(clock)
    assert [maker.page.get(), maker.page.get()] == [1, 1]
    clock.advance(KEEP * 0.9)
    assert maker.page.get() == 1
    clock.advance(KEEP * 0.2)
    assert maker.page.get() == 2


def test_who_asks_steadily_gets_the_last_page_while_a_slow_one_is_made() -> None:
    clock = FakeClock()
    maker = Maker(clock)
    assert maker.page.get() == 1
    clock.advance(2 * KEEP)
    maker.hold()
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(maker.page.get)
        assert maker.begun.wait(60)
        assert maker.page.get() == 1
        maker.may_end.set()
        assert slow.result(60) == 2
    assert maker.page.get() == 2


def test_nobody_gets_a_page_of_long_ago_and_all_who_wait_get_the_same() -> None:
    clock = FakeClock()
    maker = Maker(clock)
    assert maker.page.get() == 1
    clock.advance(60.0)
    maker.hold()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(maker.page.get) for _ in range(8)]
        assert maker.begun.wait(60)
        maker.may_end.set()
        assert {each.result(60) for each in asked} == {2}
    assert maker.made == 2
