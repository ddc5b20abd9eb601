"""Administration calls that only Youzan's nsqd and nsqlookupd have, as two tables of names.

The parameters have Youzan's own names: youzan/nsq, nsqdserver/http.go and nsqlookupd/http.go.  A plain server answers
these calls with HTTPStatusError 404.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gnsq_lite.errors import OptionError
from gnsq_lite.http.client import HTTPClient
from gnsq_lite.http.reply import Reply
from gnsq_lite.option_fields import check_choice
from gnsq_lite.wire.names import check_channel, check_topic


class AdminCall(NamedTuple):
    """An endpoint: HTTP method, path, and its parameters, separated by spaces."""

    method: str
    path: str
    required: str = ""
    optional: str = ""


_CHANNEL = ("topic channel", "partition")
_TOPIC = ("topic", "partition")

#: Calls of Youzan's nsqd.  Without ``partition`` they act on the partition that this nsqd leads.
NSQD_CALLS: Mapping[str, AdminCall] = {
    "backup_delayed_queue": AdminCall("GET", "/delayqueue/backupto", "topic partition"),
    "clean_old_data": AdminCall("POST", "/topic/greedyclean", *_TOPIC),
    "clean_unused": AdminCall("POST", "/topic/cleanunused", "checkall dryrun", "topic partition"),
    "coordinator_stats": AdminCall("GET", "/coordinator/stats", "", "topic partition"),
    "disable_trace": AdminCall("POST", "/message/trace/disable", "topic", "channel"),
    "disable_write": AdminCall("POST", "/disable/write", "type"),
    "empty_delayed": AdminCall("POST", "/channel/emptydelayed", *_CHANNEL),
    "enable_delayed_queue": AdminCall("PUT", "/delayqueue/enable", "enable"),
    "enable_file_meta_writer": AdminCall("PUT", "/filemeta_writer/enable", "state"),
    "enable_trace": AdminCall("POST", "/message/trace/enable", "topic", "channel"),
    "finish_memory_delayed": AdminCall("POST", "/channel/finishmemdelayed", *_CHANNEL),
    "finish_message": AdminCall("POST", "/message/finish", "topic channel msgid", "partition"),
    "fix_channel_confirmed": AdminCall("POST", "/channel/fixconfirmed", *_CHANNEL),
    "fix_topic_data": AdminCall("POST", "/topic/fixdata", "topic", "partition checkcorrupt"),
    "limit_channel_clients": AdminCall(
        "POST", "/channel/setclientlimit", "topic channel ready client_prefix", "partition"
    ),
    "limit_channel_rate": AdminCall("POST", "/channel/ratelimit", "topic channel ratekilobytes", "partition"),
    "message_history": AdminCall("GET", "/message/historystats", "topic partition"),
    "message_stats": AdminCall("GET", "/message/stats", *_CHANNEL),
    "metrics": AdminCall("GET", "/metric"),
    "requeue_delayed": AdminCall("POST", "/channel/requeuedelayed", *_CHANNEL),
    "server_stats": AdminCall("GET", "/serverstats"),
    "set_channel_order": AdminCall("POST", "/channel/setorder", "topic channel order", "partition"),
    "set_log_level": AdminCall("POST", "/loglevel/set", "loglevel"),
    "skip_channel": AdminCall("POST", "/channel/skip", *_CHANNEL),
    "skip_zan_test": AdminCall("POST", "/channel/skipZanTest", *_CHANNEL),
    "unskip_channel": AdminCall("POST", "/channel/unskip", *_CHANNEL),
    "unskip_zan_test": AdminCall("POST", "/channel/unskipZanTest", *_CHANNEL),
}

#: Calls of Youzan's nsqlookupd.  Any but the cluster's leader answers most of them 400 ``E_FAILED_ON_NOT_LEADER``.
LOOKUPD_CALLS: Mapping[str, AdminCall] = {
    "balance_top_topics": AdminCall("POST", "/cluster/balance/topn", "enable"),
    "begin_upgrade": AdminCall("POST", "/cluster/upgrade/begin"),
    "cluster_stats": AdminCall("GET", "/cluster/stats"),
    "disable_write": AdminCall("POST", "/disable/write", "type"),
    "end_upgrade": AdminCall("POST", "/cluster/upgrade/done"),
    "expand_partitions": AdminCall("POST", "/topic/partition/expand", "topic partition_num"),
    "move_partition": AdminCall("POST", "/topic/partition/move", "topic partition move_from move_to move_leader"),
    "remove_node": AdminCall("POST", "/cluster/node/remove", "remove_node"),
    "set_log_level": AdminCall("POST", "/loglevel/set", "loglevel"),
    "tombstone_lookupd": AdminCall("POST", "/cluster/lookupd/tombstone", "node", "restore"),
    "update_topic_meta": AdminCall(
        "POST", "/topic/meta/update", "topic", "upgradeext replicator syncdisk retention disable_channel_auto_create"
    ),
}


def call_admin(client: HTTPClient, calls: Mapping[str, AdminCall], name: str, parameters: Mapping[str, Any]) -> Reply:
    """Call *name* of the table *calls* and return the answer.

    Raises OptionError for a name or a parameter that the table does not have and for a required one that is missing,
    InvalidName for a bad topic or channel, and HTTPError.
    """
    check_choice("name", name, *calls)
    method, path, required, optional = calls[name]
    for parameter, value in parameters.items():
        if parameter not in f"{required} {optional}".split():
            takes = f"takes {required or 'none'}; optional: {optional or 'none'}"
            raise OptionError(parameter, value, f"is no parameter of {name}, which {takes}")
    for parameter in required.split():
        if parameters.get(parameter) is None:
            raise OptionError(parameter, None, f"is required by {name}")
    for parameter, check in (("topic", check_topic), ("channel", check_channel)):
        if parameters.get(parameter) is not None:
            check(parameters[parameter])
    return client.call(method, path, parameters)
