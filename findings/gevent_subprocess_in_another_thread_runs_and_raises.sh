#!/bin/sh
# gevent 26.9.0: in a monkey-patched process, subprocess.run() works in the main thread only.  In a thread of gevent's
# ThreadPool it raises TypeError ("child watchers are only available on the default loop"), but only after it has started
# the command.  So a caller that tries again runs the command twice.
# Depends on it: "Threads in a patched process" in docs/handlers.rst, the warning that tests/system/test_environments.py checks.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gevent==26.9.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
from gevent import monkey

monkey.patch_all()
import os
import subprocess
import sys
import time

from gevent.threadpool import ThreadPool

path = f"{sys.argv[1]}/made"


def run() -> str:
    try:
        return str(subprocess.run(["touch", path]).returncode)
    except TypeError as error:
        return type(error).__name__


print("in a thread:", ThreadPool(1).apply(run))
ends = time.monotonic() + 10
while not os.path.exists(path) and time.monotonic() < ends:
    time.sleep(0.01)
print("the command ran:", os.path.exists(path))
print("in the main thread:", run())
PROGRAM
)
echo "$seen"
[ "$seen" = "in a thread: TypeError
the command ran: True
in the main thread: 0" ]
