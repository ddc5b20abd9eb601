"""An embedded nsqd and nsqlookupd for tests, demos and benchmarks.  They keep messages only in memory.

::

    from gnsq_lite.broker import Broker

    with Broker() as broker:
        print(broker.nsqd_tcp_address, broker.http_address, broker.lookupd_http_address)

The broker sends the replies and error texts of nsqd 1.3.0.  The broker shares no protocol code with the client.
"""

from __future__ import annotations

from gnsq_lite.broker.auth import AuthRequest
from gnsq_lite.broker.embedded import Broker, LookupdNode, Node
from gnsq_lite.broker.faults import Faults
from gnsq_lite.broker.http import HTTPFaults
from gnsq_lite.broker.options import BrokerOptions

__all__ = ["AuthRequest", "Broker", "BrokerOptions", "Faults", "HTTPFaults", "LookupdNode", "Node"]
