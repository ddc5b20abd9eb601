#!/bin/sh
# prometheus_client 0.26.0: with PROMETHEUS_MULTIPROC_DIR, also the counter of a private registry, or of none, is written to
# the shared files.  Another process that collects the directory exports it, with the sum over all processes, ended ones too.
# Depends on it: the advice to unset PROMETHEUS_MULTIPROC_DIR for a worker in docs/metrics.rst.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check prometheus-client==0.26.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import os
import subprocess
import sys

environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": sys.argv[1]}
COUNT = """
from prometheus_client import CollectorRegistry, Counter
Counter("private", "x", registry=CollectorRegistry()).inc(3)
Counter("unregistered", "x", registry=None).inc(2)
"""
EXPORT = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(*sorted(line for line in generate_latest(registry).decode().splitlines() if line[:1] != "#"), sep=", ")
"""
for source in (COUNT, COUNT, EXPORT):
    subprocess.run([sys.executable, "-c", source], env=environment, check=True)
PROGRAM
)
echo "$seen"
[ "$seen" = "private_total 6.0, unregistered_total 4.0" ]
