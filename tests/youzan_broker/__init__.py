"""A cluster of Youzan's nsqds and nsqlookupds in memory, for the tests of the client.

::

    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", partitions=2)

It is the embedded broker with other sessions, HTTP APIs and leaders; recorded conversations of two real servers say
what it has to answer (tests/golden/youzan).  Partitions are not replicated: a replica is a node that may become the
leader, and the log moves with the leadership.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from gnsq_lite.broker import Broker
from gnsq_lite.broker.nsqd import Nsqd
from tests.youzan_broker.control import YouzanControl, build
from tests.youzan_broker.nsqd import DEFAULTS, YouzanNsqd

__all__ = ["YouzanBroker"]


class YouzanBroker(Broker):
    """The embedded broker as a Youzan cluster; ``youzan`` changes topics and leaders.

    *failover_time*: seconds after a leader was killed until another node leads.  A real cluster takes 30 to 90.
    """

    nsqd_type: ClassVar[type[Nsqd]] = YouzanNsqd

    def __init__(self, *, failover_time: float = 0.0, **options: Any) -> None:
        super().__init__(**{**DEFAULTS, **options})
        nsqds = cast(list[YouzanNsqd], self._nsqds)
        cluster, directory = build(nsqds, self._lookupds, self.host, failover_time)
        self.youzan = YouzanControl(self.call, cluster, directory)
