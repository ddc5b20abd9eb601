"""What Youzan's nsqlookupd adds to nsqlookupd's HTTP API; a plain one answers these with HTTPStatusError 404.

Cited to youzan/nsq, nsqlookupd/http.go.  Most acts must go to the cluster's leader: another one answers 400
``E_FAILED_ON_NOT_LEADER``; :meth:`YouzanLookupdEndpoints.list_lookupds` names it.
"""

from __future__ import annotations

from typing import Any, Literal

from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.fields import items
from gnsq_lite.http.nodes import LookupdNodes, TopicMeta, parse_lookupds, parse_meta
from gnsq_lite.option_fields import check_choice
from gnsq_lite.wire.names import check_topic


class YouzanLookupdEndpoints(HTTPClient):
    """The calls that only Youzan's nsqlookupd knows."""

    def list_lookupds(self) -> LookupdNodes:
        """Return the cluster's nsqlookupds and their leader (YZ-1); an empty result where there is no cluster."""
        reply = self.get("/listlookup")
        return parse_lookupds(reply.url, reply.json())

    def topics_meta(self) -> tuple[TopicMeta, ...]:
        """Return how each topic is made; empty where there is no cluster."""
        reply = self.get("/topics", {"metaInfo": True})
        return tuple(parse_meta(reply.url, entry) for entry in items(reply.url, reply.json(), "meta_info"))

    def move_partition(self, topic: str, partition: int, *, move_from: str, move_to: str, move_leader: bool) -> None:
        """Move a partition between nsqds, named by their ``distributed_id``.  Refused while the cluster is unstable."""
        check_topic(topic)
        params = {"topic": topic, "partition": partition, "move_leader": move_leader}
        self.post("/topic/partition/move", {**params, "move_from": move_from, "move_to": move_to})

    def expand_partitions(self, topic: str, partition_num: int) -> None:
        """Give the topic more partitions."""
        check_topic(topic)
        self.post("/topic/partition/expand", {"topic": topic, "partition_num": partition_num})

    def update_topic_meta(
        self,
        topic: str,
        *,
        upgrade_ext: bool | None = None,
        replicator: int | None = None,
        sync_disk: int | None = None,
        retention: int | None = None,
        disable_channel_auto_create: bool | None = None,
    ) -> None:
        """Change how the topic is made.  ``retention`` is in days, ``sync_disk`` in messages.

        ``upgrade_ext`` makes it an ext topic: consumers without extend_support stop getting messages.
        """
        check_topic(topic)
        params = {
            "topic": topic,
            "upgradeext": upgrade_ext,
            "replicator": replicator,
            "syncdisk": sync_disk,
            "retention": retention,
            "disable_channel_auto_create": disable_channel_auto_create,
        }
        self.post("/topic/meta/update", params)

    def disable_write(self, kind: Literal["all", "ordered", ""] = "all") -> None:
        """Refuse changes of all or of ordered topics in the cluster; ``""`` allows them again."""
        check_choice("kind", kind, "all", "ordered", "")
        self.post("/disable/write", {"type": kind})

    def set_log_level(self, level: int) -> None:
        """Set the log level; a higher number says more."""
        self.post("/loglevel/set", {"loglevel": level})

    def cluster_stats(self) -> Any:
        """Return whether the cluster is stable, and the load of its nodes (JSON)."""
        return self.get_json("/cluster/stats")

    def remove_node(self, node_id: str) -> None:
        """Take an nsqd, named by its ``distributed_id``, out of the cluster; its partitions move away first."""
        self.post("/cluster/node/remove", {"remove_node": node_id})

    def begin_upgrade(self) -> None:
        """Hold back the moving of partitions while nodes are restarted."""
        self.post("/cluster/upgrade/begin")

    def end_upgrade(self) -> None:
        """End :meth:`begin_upgrade`."""
        self.post("/cluster/upgrade/done")

    def tombstone_lookupd(self, node_id: str, *, restore: bool | None = None) -> None:
        """Leave an nsqlookupd out of :meth:`list_lookupds`, or take that back."""
        self.post("/cluster/lookupd/tombstone", {"node": node_id, "restore": restore})

    def balance_top_topics(self, enable: bool) -> None:
        """Turn the balancing of the topics with the most traffic on or off."""
        self.post("/cluster/balance/topn", {"enable": enable})
