"""HTTP clients of nsqd and nsqlookupd, plain and Youzan's: typed results, bounded calls.

    with NsqdClient("127.0.0.1:4151") as nsqd:
        nsqd.create_topic("clicks")
        print(nsqd.stats().topics)

Safe under gevent, monkey-patched or not: a server that does not answer stops no other greenlet.
"""

from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.lookupd import LookupdClient
from gnsq_lite.http.nodes import LookupdInfo, LookupdNode, LookupdNodes, LookupResult, Node, TopicMeta
from gnsq_lite.http.nsqd import NsqdClient, PublishTrace, StoredMessage
from gnsq_lite.http.stats import ChannelStats, ClientStats, Latency, MemoryStats, NsqdInfo, NsqdStats, TopicStats

__all__ = [
    "ChannelStats",
    "ClientStats",
    "HTTPClient",
    "Latency",
    "LookupResult",
    "LookupdClient",
    "LookupdInfo",
    "LookupdNode",
    "LookupdNodes",
    "MemoryStats",
    "Node",
    "NsqdClient",
    "NsqdInfo",
    "NsqdStats",
    "PublishTrace",
    "StoredMessage",
    "TopicMeta",
    "TopicStats",
]
