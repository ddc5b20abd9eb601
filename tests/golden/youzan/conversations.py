"""Requests to Youzan's real servers; the *.hex files in this folder have the responses.

This file uses nothing of the library, so that the captured bytes can show the library's mistakes.
"""

from __future__ import annotations

import json

V2 = b"  V2"


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
