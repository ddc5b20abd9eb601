"""``gnsq-lite running``: the running handler calls of a worker."""

from __future__ import annotations

import json

import click

from gnsq_lite.cli import flags
from gnsq_lite.cli.output import echo, visible
from gnsq_lite.cli.params import OUTPUT, option
from gnsq_lite.cli.params import command as tool
from gnsq_lite.http import NsqdClient
from gnsq_lite.options import HTTPOptions

#: Seconds to wait for the answer.  A supervisor waits 5 s for each process, and then for the process's stacks.
_TIMEOUT = 15.0


@tool("running", example="running 127.0.0.1:9100 --stack")
@click.argument("address", metavar="HOST:PORT")
@option("--stack", is_flag=True, section=OUTPUT, help="Print where each call stands, without the library's frames.")
@flags.as_json
def command(address: str, stack: bool, as_json: bool) -> int:
    """List the running handler calls of a worker, the oldest first.

    HOST:PORT is the address of the worker's live page (`gnsq-lite worker --metrics-port`).  For a process that does not
    answer, because a handler holds the GIL, the command prints the last message begun and the stacks of all threads.
    """
    with NsqdClient(address, HTTPOptions(http_timeout=_TIMEOUT)) as client:
        found = client.get("/api/running").json()
    if as_json:
        echo(json.dumps(found))
        return 0
    for call in found["calls"]:
        more = f" and {call['messages'] - 1} more" if call["messages"] > 1 else ""
        where = f"{call['topic']}/{call['channel']}  {call['id']}{more}  attempt {call['attempt']}"
        echo(
            visible(f"{call['seconds']:.0f} s  {where}  process {call['process']}, pid {call['pid']}, {call['thread']}")
        )
        for frame in call["stack"].split(" > ") if stack else ():
            echo(visible(f"    {frame}"))
    for each in found["silent"]:
        message = each["last_message"] or "unknown"
        echo(visible(f"process {each['process']}, pid {each['pid']}, does not answer; last message begun: {message}"))
        echo(visible(each["stacks"]))
    return 0
