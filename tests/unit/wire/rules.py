"""The map of ``gnsq_lite.wire``: which words of the specification are kept where, and which test proves it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Rule(NamedTuple):
    """One line of the map.

    ``heading`` is a section of NSQ's documents, ``rule`` the project's own number for what it asks; ``module`` and
    ``symbol`` tell where it is kept, ``test`` (file and function, under tests/unit/wire) where it is proved.
    """

    heading: str
    rule: str
    module: str
    symbol: str
    test: str


RULES: Final = (
    Rule(
        "Introduction: magic",
        "WIRE-1",
        "handshake",
        "Handshake.start",
        "test_handshake::test_the_handshake_goes_in_order",
    ),
    Rule(
        "Data Format: frame",
        "WIRE-2",
        "frames",
        "FrameDecoder.feed",
        "test_frames::test_each_type_of_frame_is_read_from_the_specified_bytes",
    ),
    Rule(
        "Data Format: message",
        "WIRE-3",
        "frames",
        "FrameDecoder",
        "test_messages::test_a_messages_fields_stand_where_the_specification_says",
    ),
    Rule(
        "Data Format: sizes and types",
        "WIRE-4",
        "frames",
        "FrameDecoder",
        "test_frames::test_a_size_outside_the_bounds_is_refused_before_more_is_read",
    ),
    Rule(
        "Data Format: a stream",
        "WIRE-5",
        "receive_buffer",
        "ReceiveBuffer",
        "test_frames::test_any_bytes_in_any_split_give_what_the_rules_say",
    ),
    Rule(
        "Introduction: valid names",
        "WIRE-6",
        "names",
        "check_topic",
        "test_names::test_any_text_is_judged_as_the_rule_says",
    ),
    Rule(
        "IDENTIFY",
        "WIRE-7",
        "commands",
        "identify",
        "test_commands::test_a_command_has_the_layout_of_the_specification",
    ),
    Rule("AUTH", "WIRE-7", "commands", "auth", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule("SUB", "WIRE-7", "commands", "subscribe", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule("PUB", "WIRE-7", "commands", "publish", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule("MPUB", "WIRE-7", "commands", "multipublish", "test_commands::test_a_batch_reads_back_as_nsqd_reads_it"),
    Rule(
        "DPUB",
        "WIRE-8",
        "commands",
        "defer_publish",
        "test_commands::test_a_defer_above_nsqds_limit_is_refused_on_its_millisecond",
    ),
    Rule("RDY", "WIRE-7", "commands", "ready", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule("FIN", "WIRE-7", "commands", "finish", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule(
        "REQ", "WIRE-8", "commands", "requeue", "test_commands::test_a_delay_that_is_negative_or_no_number_is_refused"
    ),
    Rule("TOUCH", "WIRE-7", "commands", "touch", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule("CLS", "WIRE-7", "commands", "CLS", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule("NOP", "WIRE-7", "commands", "NOP", "test_commands::test_a_command_has_the_layout_of_the_specification"),
    Rule(
        "PUB, MPUB: bodies",
        "WIRE-8",
        "commands",
        "check_body",
        "test_commands::test_an_empty_body_is_refused_and_one_of_a_byte_is_not",
    ),
    Rule(
        "IDENTIFY: fields",
        "NEG-1",
        "identify",
        "build_identify",
        "test_identify::test_an_option_becomes_its_key_in_the_servers_unit",
    ),
    Rule(
        "IDENTIFY: OK",
        "NEG-2",
        "identify",
        "parse_identify_reply",
        "test_identify::test_a_plain_ok_means_the_defaults_and_no_features",
    ),
    Rule(
        "IDENTIFY: feature_negotiation",
        "NEG-3",
        "identify",
        "Negotiated",
        "test_identify::test_the_reply_of_a_real_nsqd_is_read",
    ),
    Rule(
        "IDENTIFY: what is not granted",
        "NEG-4",
        "handshake",
        "not_granted",
        "test_handshake::test_other_things_that_are_not_granted_are_a_warning",
    ),
    Rule(
        "IDENTIFY: tls_v1",
        "NEG-4",
        "handshake",
        "Handshake.receive",
        "test_handshake::test_tls_that_is_not_granted_ends_it_before_anything_else_is_sent",
    ),
    Rule(
        "IDENTIFY: snappy",
        "SEC-2",
        "compress",
        "SnappyCodec",
        "test_compress::test_the_streams_of_a_real_nsqd_are_read",
    ),
    Rule(
        "IDENTIFY: deflate",
        "SEC-2",
        "compress",
        "DeflateCodec",
        "test_compress::test_the_streams_of_a_real_nsqd_are_read",
    ),
    Rule(
        "Building Client Libraries: read to empty",
        "SEC-3",
        "frames",
        "FrameDecoder.take_pending",
        "test_frames::test_one_frame_is_taken_and_what_follows_it_is_handed_over_raw",
    ),
    Rule(
        "AUTH: auth_required",
        "SEC-4",
        "handshake",
        "Handshake.auth_reply",
        "test_handshake::test_auth_that_is_required_and_not_configured_is_typed_before_sub",
    ),
    Rule(
        "IDENTIFY: sample_rate",
        "SEC-5",
        "identify",
        "build_identify",
        "test_identify::test_the_values_of_the_reply_rule_and_are_seconds",
    ),
    Rule(
        "Building Client Libraries: connection handling",
        "CONN-1",
        "handshake",
        "Handshake",
        "test_handshake::test_the_handshake_goes_in_order",
    ),
)
