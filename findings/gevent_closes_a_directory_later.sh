#!/bin/sh
# gevent 26.9.0 replaces os.close() in a monkey-patched process.  If the thread has a hub, it returns before the
# descriptor of a directory is closed: the hub closes it later.  So a lock that flock() took on the directory is still held after
# os.close(), until it is released by LOCK_UN or the hub has run.  A regular file is closed at once.
# Depends on it: Directory.claim() in gnsq_lite/worker/dead.py, tests/system/test_redrive.py in a patched process.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gevent==26.9.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
from gevent import monkey

monkey.patch_all()
import fcntl
import os
import sys

import gevent


def is_locked(path: str) -> bool:
    other = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


gevent.sleep(0)  # the thread has a hub
folder = sys.argv[1]
open(f"{folder}/file", "w").close()
for name, path in (("directory", folder), ("file", f"{folder}/file")):
    first = os.open(path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    os.close(first)
    print(name, "locked after close:", is_locked(path))
PROGRAM
)
echo "$seen"
[ "$seen" = "directory locked after close: True
file locked after close: False" ]
