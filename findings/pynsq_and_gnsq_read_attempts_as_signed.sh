#!/bin/sh
# pynsq 0.9.1 and gnsq 1.0.2 read the attempts of a message as a signed number, although nsqd counts to 65,535.  The number is
# negative after 32,767 attempts, and so below any max_tries.
# Depends on it: "attempts" in docs/guarantees.rst, the unsigned attempts of tests/unit/wire/test_frames.py.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pynsq==0.9.1 gnsq==1.0.2
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import struct

import gnsq.protocol
import nsq.protocol

for attempts in (32767, 32768, 65535):
    frame = struct.pack(">qH16s", 1, attempts, b"0123456789abcdef") + b"body"
    print(attempts, nsq.protocol.decode_message(frame).attempts, gnsq.protocol.unpack_message(frame)[1])
PROGRAM
)
echo "$seen"
[ "$seen" = "32767 32767 32767
32768 -32768 -32768
65535 -1 -1" ]
