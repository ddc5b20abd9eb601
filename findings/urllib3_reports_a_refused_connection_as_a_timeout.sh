#!/bin/sh
# urllib3 2.8.0: a refused connection raises NewConnectionError, which is a subclass of ConnectTimeoutError and TimeoutError.
# Code that handles time-outs first never sees a refused connection.
# Depends on it: the order of the classes in gnsq_lite/http/transport.py.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check urllib3==2.8.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import socket

import urllib3

with socket.socket() as bound:  # bound, but not listening
    bound.bind(("127.0.0.1", 0))
    try:
        urllib3.PoolManager().request("GET", f"http://127.0.0.1:{bound.getsockname()[1]}/", retries=False)
    except urllib3.exceptions.TimeoutError as error:
        print(type(error).__name__, isinstance(error, urllib3.exceptions.ConnectTimeoutError), "refused" in str(error))
PROGRAM
)
echo "$seen"
[ "$seen" = "NewConnectionError True True" ]
