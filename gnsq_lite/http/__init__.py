"""HTTP clients for nsqd and nsqlookupd (plain and Youzan's), with typed results, time limits and size limits.

    with NsqdClient("127.0.0.1:4151") as nsqd:
        nsqd.create_topic("clicks")
        print(nsqd.stats().topics)

In a process that uses gevent, monkey-patched or not, a call to a slow server does not block other greenlets.
"""

from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.lookupd import LookupdClient
from gnsq_lite.http.nodes import LookupdInfo, LookupResult, Node, TopicMeta
from gnsq_lite.http.nsqd import NsqdClient
from gnsq_lite.http.stats import ChannelStats, ClientStats, NsqdInfo, NsqdStats, TopicStats

__all__ = [
    "ChannelStats",
    "ClientStats",
    "HTTPClient",
    "LookupResult",
    "LookupdClient",
    "LookupdInfo",
    "Node",
    "NsqdClient",
    "NsqdInfo",
    "NsqdStats",
    "TopicMeta",
    "TopicStats",
]
