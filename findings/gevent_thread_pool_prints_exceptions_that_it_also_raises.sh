#!/bin/sh
# gevent 26.9.0: ThreadPool.apply() raises the exception of the function in the caller, and the pool prints the traceback to
# stderr as well, although the caller handles the exception.
# Depends on it: gnsq_lite/blocking_calls.py, whose functions return their exceptions instead.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gevent==26.9.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import contextlib
import io

import gevent
from gevent.threadpool import ThreadPool


def fail() -> None:
    raise ValueError("no stock")


printed = io.StringIO()
with contextlib.redirect_stderr(printed):
    gevent.get_hub().exception_stream = printed
    try:
        ThreadPool(1).apply(fail)
    except ValueError as error:
        print("raised:", error)
    gevent.sleep(0.1)
print("printed:", "ValueError: no stock" in printed.getvalue())
PROGRAM
)
echo "$seen"
[ "$seen" = "raised: no stock
printed: True" ]
