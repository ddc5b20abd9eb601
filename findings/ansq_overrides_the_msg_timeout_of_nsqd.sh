#!/bin/sh
# ansq 0.3.0 always sends msg_timeout=60000 in IDENTIFY; pynsq 0.9.1 sends none unless it is given.  So nsqd's --msg-timeout
# does not apply to consumers with ansq, and their messages come to other consumers after 60 s, also if nsqd says 8 s.
# Depends on it: "Other clients on one channel" in docs/guarantees.rst.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ansq==0.3.0 pynsq==0.9.1
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import asyncio
import json
import subprocess
import sys

ANSQ = """
import asyncio, sys, ansq
asyncio.run(ansq.create_reader(topic="t", channel="c", nsqd_tcp_addresses=["127.0.0.1:" + sys.argv[1]]))
"""
PYNSQ = """
import sys, nsq
nsq.Reader(message_handler=print, topic="t", channel="c", nsqd_tcp_addresses=["127.0.0.1:" + sys.argv[1]])
nsq.run()
"""


async def identify_of(source: str) -> dict:
    """Return what the client sends in IDENTIFY."""
    sent: asyncio.Future = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"IDENTIFY\n")
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        if not sent.done():
            sent.set_result(json.loads(body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = str(server.sockets[0].getsockname()[1])
    client = subprocess.Popen([sys.executable, "-c", source, port], stderr=subprocess.DEVNULL)
    try:
        return await asyncio.wait_for(sent, 30)
    finally:
        client.kill()
        client.wait()


for name, source in (("ansq", ANSQ), ("pynsq", PYNSQ)):
    print(name, asyncio.run(identify_of(source)).get("msg_timeout"))
PROGRAM
)
echo "$seen"
[ "$seen" = "ansq 60000
pynsq None" ]
