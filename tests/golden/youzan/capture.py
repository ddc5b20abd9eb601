"""Make the *.hex and *.json files beside this one anew, from a fresh cluster of Youzan's servers (two nsqds).

    python tests/golden/youzan/capture.py 127.0.0.1:4161

names its nsqlookupd's HTTP address; names of conversations may follow, for these alone.  Every .hex file is what an
nsqd wrote on one new connection, and says in its first lines to whom what was sent; every .json file is an answer of
nsqlookupd's HTTP.  Nothing of the library is used, so that the files bear witness against it.  The tests read the
files and need no server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
V2 = b"  V2"
TOPICS = {
    "gplain": "partition_num=2&replicator=1",
    "gordered": "partition_num=2&replicator=1&orderedmulti=true",
    "gext": "partition_num=1&replicator=1&extend=true",
    "gextord": "partition_num=1&replicator=1&extend=true&orderedmulti=true",
    "gclosed": "partition_num=1&replicator=1&disable_channel_auto_create=true",
}


def size(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big")


def sized(body: bytes) -> bytes:
    return size(body) + body


def many(*bodies: bytes) -> bytes:
    return sized(len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies)))


def ext(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(2, "big") + header + body


def identify(**keys: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps({"client_id": "golden", "hostname": "golden.local", **keys}).encode())


def call(
    address: str, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    try:
        return answer.status, answer.headers.get("X-Nsq-Content-Type", ""), json.loads(body)
    except ValueError:
        return answer.status, answer.headers.get("X-Nsq-Content-Type", ""), body


def leader(lookupd: str, topic: str, partition: int) -> tuple[str, int]:
    node = call(lookupd, f"/lookup?topic={topic}&access=w&metainfo=true")[2]["data"]["partitions"][str(partition)]
    return node["broadcast_address"], node["tcp_port"]


def read_for(sock: socket.socket, seconds: float) -> bytes:
    sock.settimeout(seconds)
    got = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while data := sock.recv(1 << 16):
            got += data
        got += b"<EOF>"
    return got


def converse(address: tuple[str, int], sent: list[bytes], wait: float = 0.4) -> tuple[bytes, bool]:
    with socket.create_connection(address) as sock:
        got = b""
        for data in sent:
            if b"<ID>" in data:  # the id of the last message
                data = data.replace(b"<ID>", last_id(got))
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
            got += read_for(sock, wait).removesuffix(b"<EOF>")
        return got, ended(sock)


def last_id(got: bytes) -> bytes:
    found, at = b"", 0
    while at < len(got):
        end = at + 4 + int.from_bytes(got[at : at + 4], "big")
        if got[at + 4 : at + 8] == b"\0\0\0\2":
            found = got[at + 18 : at + 34]
        at = end
    return found


def ended(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def save(name: str, to: str, sent: list[bytes], got: bytes, closed: bool) -> None:
    lines = [
        "# nsqd 0.3.7-HA.1.13.0, cluster of two",
        f"# to: {to}",
        "# sent, each after the answer to the one before:",
    ]
    lines += [f"#   {data!r}" for data in sent]
    lines.append(f"# received, then {'closed' if closed else 'open'}:")
    lines += [got[at : at + 32].hex(" ") for at in range(0, len(got), 32)]
    (HERE / f"{name}.hex").write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(got)} bytes {'closed' if closed else 'open'} {got[:150]!r}")


NEGOTIATE = identify(feature_negotiation=True)
EXTEND = identify(feature_negotiation=True, extend_support=True)
TRACE = bytes.fromhex("1122334455667788")
HEADER = b'{"k": "v"}'
TAG = b'{"##client_dispatch_tag":"tagA"}'

#: name: (topic/partition to whose leader it is sent, or "!" + that for the other node; what is sent)
CONVERSATIONS: dict[str, tuple[str, list[bytes]]] = {
    "identify_reply": ("gplain/0", [V2 + NEGOTIATE]),
    "identify_tag": ("gplain/0", [V2 + identify(feature_negotiation=True, desired_tag="tagA")]),
    "identify_extend": ("gplain/0", [V2 + EXTEND]),
    "pub_ok": ("gplain/0", [V2, b"PUB gplain 0\n" + sized(b"hello"), b"PUB gplain\n" + sized(b"hello")]),
    "mpub_ok": ("gplain/0", [V2, b"MPUB gplain 0\n" + many(b"a", b"bc")]),
    "pub_trace": ("gplain/0", [V2, b"PUB_TRACE gplain 0\n" + sized(TRACE + b"traced")]),
    "pub_trace_zero": ("gplain/1", [V2, b"PUB_TRACE gplain 1\n" + sized(b"\0" * 8 + b"traced")]),
    "mpub_trace": ("gplain/0", [V2, b"MPUB_TRACE gplain 0\n" + many(TRACE + b"one", b"\0" * 8 + b"two")]),
    "pub_ext": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(HEADER, b"body1"))]),
    "pub_ext_trace": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(b'{"##trace_id":"4660"}', b"body1"))]),
    "mpub_ext": ("gext/0", [V2, b"MPUB_EXT gext 0\n" + many(ext(HEADER, b"a"), ext(b"", b"b"))]),
    "mpub_ext_trace": ("gext/0", [V2, b"MPUB_EXT gext 0\n" + many(ext(b'{"##trace_id":"4660"}', b"a"))]),
    "mpub_ext_plain": ("gplain/0", [V2, b"MPUB_EXT gplain 0\n" + many(ext(b"", b"a"))]),
    "pub_on_ext": ("gext/0", [V2, b"PUB gext 0\n" + sized(b"x"), b"PUB_TRACE gext 0\n" + sized(TRACE + b"x")]),
    "sub_plain": (
        "gplain/0",
        [V2 + NEGOTIATE, b"SUB gplain c1 0\n", b"PUB_TRACE gplain 0\n" + sized(TRACE + b"hello"), b"RDY 1\n", b"CLS\n"],
    ),
    "sub_partition_1": ("gplain/1", [V2, b"SUB gplain c1 1\n", b"PUB gplain 1\n" + sized(b"one"), b"RDY 1\n"]),
    "sub_advanced": (
        "gplain/0",
        [V2, b"SUB_ADVANCED gplain c2 0\n", b"PUB_TRACE gplain 0\n" + sized(TRACE + b"adv"), b"RDY 1\n"],
    ),
    "sub_advanced_end": ("gplain/0", [V2, b"SUB_ADVANCED gplain c3 0 special:-1\n"]),
    "sub_advanced_count": ("gplain/0", [V2, b"SUB_ADVANCED gplain c4 0 msgcount:1\n", b"RDY 1\n"]),
    "sub_advanced_byte": ("gplain/0", [V2, b"SUB_ADVANCED gplain c5 0 virtual_queue:0\n", b"RDY 1\n"]),
    "sub_advanced_time": ("gplain/0", [V2, b"SUB_ADVANCED gplain c6 0 timestamp:1000000000\n", b"RDY 1\n"]),
    "sub_ordered": (
        "gordered/0",
        [
            V2,
            b"SUB_ORDERED gordered c1 0\n",
            b"PUB_TRACE gordered 0\n" + sized(TRACE + b"first") + b"PUB gordered 0\n" + sized(b"second"),
            b"RDY 10\n",
            b"REQ <ID> 0\n",
            b"REQ <ID> 300\n",
            b"FIN <ID>\n",
            b"FIN <ID>\n",
        ],
    ),
    "sub_ordered_on_plain": (
        "gplain/1",
        [V2, b"SUB_ORDERED gplain cord 1\n", b"PUB gplain 1\n" + sized(b"x"), b"RDY 5\n", b"FIN <ID>\n"],
    ),
    "sub_ext": (
        "gext/0",
        [
            V2 + EXTEND,
            b"SUB gext c1 0\n",
            b"PUB_EXT gext 0\n" + sized(ext(HEADER, b"withext")) + b"PUB gext 0\n" + sized(b"noext"),
            b"RDY 5\n",
        ],
    ),
    "sub_ext_advanced": (
        "gext/0",
        [
            V2 + EXTEND,
            b"SUB_ADVANCED gext c2 0\n",
            b"PUB_EXT gext 0\n" + sized(ext(HEADER, b"withext")) + b"PUB gext 0\n" + sized(b"noext"),
            b"RDY 5\n",
        ],
    ),
    "sub_ext_ordered": (
        "gextord/0",
        [
            V2 + EXTEND,
            b"SUB_ORDERED gextord c1 0\n",
            b"PUB_EXT gextord 0\n" + sized(ext(HEADER, b"withext")),
            b"RDY 5\n",
        ],
    ),
    "sub_tag": (
        "gext/0",
        [
            V2 + identify(feature_negotiation=True, extend_support=True, desired_tag="tagA"),
            b"SUB gext ctag 0\n",
            b"PUB_EXT gext 0\n" + sized(ext(TAG, b"tagged")),
            b"RDY 5\n",
            b"FIN <ID>\n",
        ],
    ),
    "requeue": (
        "gplain/0",
        [V2, b"SUB gplain creq 0\n", b"PUB gplain 0\n" + sized(b"again"), b"RDY 1\n", b"REQ <ID> 0\n", b"FIN <ID>\n"],
    ),
    "error_unknown": ("gplain/0", [V2, b"FOO bar\n"]),
    "error_dpub": ("gplain/0", [V2, b"DPUB gplain 10\n" + sized(b"x")]),
    "error_sub_order": ("gordered/0", [V2, b"SUB_ORDER gordered c1 0\n"]),
    "error_magic": ("gplain/0", [b"  V1"]),
    "error_pub_no_topic": ("gplain/0", [V2, b"PUB gnone 0\n" + sized(b"x")]),
    "error_pub_bad_name": ("gplain/0", [V2, b"PUB bad!t 0\n" + sized(b"x")]),
    "error_pub_other_node": ("!gplain/0", [V2, b"PUB gplain 0\n" + sized(b"x")]),
    "error_sub_no_topic": ("gplain/0", [V2, b"SUB gnone c1 0\n"]),
    "error_sub_other_node": ("!gplain/0", [V2, b"SUB gplain c1 0\n"]),
    "error_pub_bad_partition": ("gplain/0", [V2, b"PUB gplain abc\n" + sized(b"x")]),
    "error_pub_ordered_no_partition": ("gordered/0", [V2, b"PUB gordered\n" + sized(b"x")]),
    "error_pub_empty": ("gplain/0", [V2, b"PUB gplain 0\n\0\0\0\0"]),
    "error_pub_too_big": ("gplain/0", [V2, b"PUB gplain 0\n" + (1048577).to_bytes(4, "big")]),
    "error_mpub_too_big": ("gplain/0", [V2, b"MPUB gplain 0\n" + (5242881).to_bytes(4, "big")]),
    "error_mpub_none": ("gplain/0", [V2, b"MPUB gplain 0\n" + many()]),
    "error_mpub_empty_message": ("gplain/0", [V2, b"MPUB gplain 0\n" + many(b"a", b"")]),
    "error_trace_empty": ("gplain/0", [V2, b"PUB_TRACE gplain 0\n" + sized(TRACE)]),
    "error_mpub_trace_empty": ("gplain/0", [V2, b"MPUB_TRACE gplain 0\n" + many(TRACE)]),
    "error_ext_on_plain": ("gplain/0", [V2, b"PUB_EXT gplain 0\n" + sized(ext(b"{}", b"x")), b"NOP\n"]),
    "error_mpub_ext_on_plain": (
        "gplain/0",
        [V2, b"MPUB_EXT gplain 0\n" + many(ext(b"{}", b"one"), ext(b"{}", b"two"))],
    ),
    "error_ext_bad_json": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(b"{nope", b"x"))]),
    "error_ext_no_json": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(b"", b"x"))]),
    "error_ext_trace_type": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(b'{"##trace_id":4660}', b"x"))]),
    "error_ext_trace_text": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(b'{"##trace_id":"x"}', b"x"))]),
    "error_ext_no_body": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(ext(b"{}", b""))]),
    "error_ext_too_short": ("gext/0", [V2, b"PUB_EXT gext 0\n" + sized(b"\0\1")]),
    "error_order_is_must": ("gordered/0", [V2, b"SUB gordered c1 0\n"]),
    "error_order_is_must_advanced": ("gordered/0", [V2, b"SUB_ADVANCED gordered c1 0\n"]),
    "error_extend_need": ("gext/0", [V2, b"SUB gext c1 0\n"]),
    "error_extend_forbidden": ("gplain/0", [V2 + EXTEND, b"SUB gplain c1 0\n"]),
    "error_channel_not_registered": ("gclosed/0", [V2, b"SUB gclosed c1 0\n"]),
    "error_sub_no_heartbeat": ("gplain/0", [V2 + identify(heartbeat_interval=-1), b"SUB gplain c1 0\n"]),
    "error_ordered_sample": ("gordered/0", [V2 + identify(sample_rate=10), b"SUB_ORDERED gordered c1 0\n"]),
    "error_sub_bad_topic": ("gplain/0", [V2, b"SUB bad!t c1 0\n"]),
    "error_sub_bad_channel": ("gplain/0", [V2, b"SUB gplain bad!ch 0\n"]),
    "error_sub_bad_partition": ("gplain/0", [V2, b"SUB gplain c1 x\n"]),
    "error_sub_short": ("gplain/0", [V2, b"SUB gplain\n"]),
    "error_sub_bad_offset": ("gplain/0", [V2, b"SUB_ADVANCED gplain c9 0 count:1\n"]),
    "error_sub_twice": ("gplain/0", [V2, b"SUB gplain c1 0\n", b"SUB gplain c1 0\n"]),
    "error_fin_not_in_flight": (
        "gplain/0",
        [
            V2,
            b"SUB gplain c1 0\n",
            b"FIN \0\0\0\0\0\0\0\5" + b"\0" * 8 + b"\n",
            b"REQ \0\0\0\0\0\0\0\5" + b"\0" * 8 + b" 0\n",
            b"TOUCH \0\0\0\0\0\0\0\5" + b"\0" * 8 + b"\n",
        ],
    ),
    "error_fin_zero": ("gplain/0", [V2, b"SUB gplain c1 0\n", b"FIN " + b"\0" * 16 + b"\n"]),
    "error_fin_bad_length": ("gplain/0", [V2, b"SUB gplain c1 0\n", b"FIN abc\n"]),
    "error_rdy_range": ("gplain/0", [V2, b"SUB gplain c1 0\n", b"RDY 2501\n"]),
    "error_rdy_negative": ("gplain/0", [V2, b"SUB gplain c1 0\n", b"RDY -1\n"]),
    "error_cls_twice": ("gplain/0", [V2, b"SUB gplain c1 0\n", b"CLS\n", b"CLS\n"]),
    "error_fin_before_sub": ("gplain/0", [V2, b"FIN " + b"\0" * 7 + b"\5" + b"\0" * 8 + b"\n"]),
    "error_rdy_before_sub": ("gplain/0", [V2, b"RDY 1\n"]),
    "error_cls_before_sub": ("gplain/0", [V2, b"CLS\n"]),
    "error_auth_disabled": ("gplain/0", [V2, b"AUTH\n" + sized(b"s")]),
    "error_create_topic": ("gplain/0", [V2, b"INTERNAL_CREATE_TOPIC gnew 0\n"]),
    "error_identify_heartbeat": ("gplain/0", [V2 + identify(heartbeat_interval=500)]),
    "error_identify_both_codecs": (
        "gplain/0",
        [V2 + identify(feature_negotiation=True, snappy=True, deflate=True)],
    ),
}

LOOKUPS = {
    "lookup_read": "/lookup?topic=gplain&access=r",
    "lookup_read_meta": "/lookup?topic=gordered&access=r&metainfo=true",
    "lookup_write_meta": "/lookup?topic=gplain&access=w&metainfo=true",
    "lookup_ext_meta": "/lookup?topic=gext&access=r&metainfo=true",
    "lookup_one_partition": "/lookup?topic=gplain&access=w&metainfo=true&partition=1",
    "lookup_unknown_read": "/lookup?topic=gnone&access=r&metainfo=true",
    "lookup_unknown_write": "/lookup?topic=gnone&access=w&metainfo=true",
    "lookup_no_topic": "/lookup",
    "lookup_bad_access": "/lookup?topic=gplain&access=x",
    "listlookup": "/listlookup",
    "topics_meta": "/topics?metaInfo=true",
    "nodes": "/nodes",
    "info": "/info",
}


def main(lookupd: str, *only: str) -> None:
    for topic, options in TOPICS.items():
        # a young cluster refuses: its nodes are not known to be stable yet
        while call(lookupd, f"/topic/create?topic={topic}&{options}", method="POST")[0] != 200:
            time.sleep(1.0)
    for topic, options in TOPICS.items():
        wanted = int(options.split("partition_num=")[1][0])
        limit = time.monotonic() + 90
        while time.monotonic() < limit:
            status, _, data = call(lookupd, f"/lookup?topic={topic}&access=w&metainfo=true")
            if status == 200 and len((data["data"] or {}).get("partitions") or {}) == wanted:
                break
            time.sleep(0.5)
    nodes = [(n["broadcast_address"], n["tcp_port"]) for n in call(lookupd, "/nodes")[2]["data"]["producers"]]
    for name, path in LOOKUPS.items():
        for form, headers in (("", {}), ("_v1", {"Accept": "application/vnd.nsq; version=1.0"})):
            status, kind, body = call(lookupd, path, headers=headers)
            answer = {"path": path, "accept": headers.get("Accept", ""), "status": status, "kind": kind, "body": body}
            (HERE / f"{name}{form}.json").write_text(json.dumps(answer, indent=1) + "\n")
    for name, (to, sent) in CONVERSATIONS.items():
        if only and name not in only:
            continue
        topic, _, partition = to.lstrip("!").partition("/")
        address = leader(lookupd, topic, int(partition))
        if to.startswith("!"):
            address = next(node for node in nodes if node != address)
        got, closed = converse(address, sent)
        save(name, to, sent, got, closed)


if __name__ == "__main__":
    main(*sys.argv[1:])
