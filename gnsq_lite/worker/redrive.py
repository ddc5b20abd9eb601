"""Publishes dead letters to their topics again, for ``gnsq-lite dead retry`` and for Django's admin site."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock, Pace
from gnsq_lite.errors import NotSent, NSQConnectionError, NSQError
from gnsq_lite.keywords import address_list
from gnsq_lite.option_fields import per_second
from gnsq_lite.options import format_address
from gnsq_lite.text import escape
from gnsq_lite.worker.dead import DeadLetter, Store
from gnsq_lite.writer import Writer


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
        key = hashlib.blake2b(
            letter.topic.encode(errors="surrogatepass") + b"\0" + letter.body, digest_size=16
        ).digest()
        is_known = key in self._seen
        self._seen.add(key)
        return letter.timestamp_ns > self._newest_ns or (is_known and letter.timestamp_ns >= self._oldest_ns)


class Redrive:
    """Publishes letters one at a time, each to the nsqd that delivered its message, and removes it after nsqd's OK.

    A letter stays if its topic or body is not valid or too large, if its nsqd cannot be reached, or if it would return
    to *own_topic*.

    Args:
        options: Keywords of the Writers without addresses.
        addresses: Address keywords.  They replace the nsqd of a letter, unless they name this nsqd.
        to_topic: Topic to publish to instead of the letter's topic.
        own_topic: Topic that stores the letters, or "".
        rate: Maximum rate, such as "30/m", or None.
        only_count: Whether to publish and remove nothing.
        report: Function that is called with one line for each letter that stays for another reason than its nsqd.
    Raises:
        OptionError
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        addresses: Mapping[str, Any] | None = None,
        *,
        to_topic: str | None = None,
        own_topic: str = "",
        rate: str | None = None,
        only_count: bool = False,
        report: Callable[[str], object],
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._options = options
        self._addresses = {name: value for name, value in (addresses or {}).items() if value}
        named = address_list(self._addresses.get("nsqd_tcp_addresses"), option="nsqd_tcp_addresses", default_port=4150)
        self._named = {format_address(address) for address in named}
        self._to_topic, self._own_topic, self._only_count, self._report = to_topic, own_topic, only_count, report
        # A slow publish causes no burst later.  publish() waits at its end, because a letter of a topic must not time
        # out while it waits.  So the first letter uses its part of the rate here.
        self._pace = Pace(per_second("rate", rate) or 0.0, clock, sleep, burst=0.0)
        self._pace.take()
        self._returned = ReturnedLetters(clock.wall())
        self._writers: dict[str, Writer] = {}
        #: Published letters by topic, and letters that stay: by nsqd that cannot be reached, possible returns, others.
        self.published, self.unreachable = Counter[str](), Counter[str]()
        self.returned = self.refused = 0

    def __enter__(self) -> Redrive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def publish(self, store: Store, letter: DeadLetter) -> None:
        """Publish *letter* and remove it from *store*, or count it as a letter that stays.  Then wait for the rate.

        Raises the errors of the store.
        """
        topic = self._to_topic or letter.topic
        nsqd = letter.nsqd_address if not self._addresses or letter.nsqd_address in self._named else ""
        if topic == self._own_topic:
            self._refuse(f"the letter {letter.key} names the store's topic {topic}: give --to another topic")
        elif self._own_topic and self._returned.is_return(letter):
            self.returned += 1
        elif nsqd in self.unreachable:
            self.unreachable[nsqd] += 1
        elif self._only_count:
            self.published[topic] += 1
        else:
            with store.claim(letter) as is_stored:
                if is_stored and self._is_published(letter, topic, nsqd):
                    store.remove(letter)
                    self.published[topic] += 1
            self._pace.take()

    def _is_published(self, letter: DeadLetter, topic: str, nsqd: str) -> bool:
        """Publish *letter*.  Return False, and count the letter, if nsqd did not confirm it."""
        try:
            if nsqd not in self._writers:
                where = {"nsqd_tcp_addresses": nsqd} if nsqd else self._addresses
                self._writers[nsqd] = Writer(**where, **self._options)
            self._writers[nsqd].publish(topic, letter.body)
        except (NotSent, NSQConnectionError) as error:
            self.unreachable[nsqd] += 1
            self._report(escape(str(error)))
        except NSQError as error:
            self._refuse(f"cannot publish the letter {letter.key}: {error}")
        else:
            return True
        return False

    def _refuse(self, why: str) -> None:
        self.refused += 1
        self._report(escape(why))

    def summary(self) -> list[str]:
        """Return a line about the letters of each nsqd that cannot be reached."""
        return [
            f"{count} letters {f'of {nsqd} stay, because it' if nsqd else 'stay, because no nsqd'} "
            f"{'cannot' if nsqd else 'can'} be reached"
            for nsqd, count in self.unreachable.items()
        ]
