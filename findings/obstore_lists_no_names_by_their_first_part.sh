#!/bin/sh
# obstore 0.12.1: list(prefix=...) takes whole parts of a path.  The prefix "logs/a-" finds neither logs/a-1 nor logs/a-2,
# while S3 itself lists names by any first characters.  The option offset works with any name, so a program lists from
# there on and skips the rest.  The prefix "logs" finds logs/a-1 and not logs2/a-1.
# Depends on it: ObjectReader.list_sealed() in gnsq_lite/recording/objects.py lists from an offset on.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1
seen=$("$folder/venv/bin/python" - <<'PROGRAM'
import obstore
from obstore.store import MemoryStore

store = MemoryStore()
for name in ("logs/a-1", "logs/a-2", "logs/b-1", "logs2/a-1"):
    obstore.put(store, name, b"x")


def names(**how: str) -> list[str]:
    """Return the listed paths."""
    return sorted(one["path"] for page in obstore.list(store, **how) for one in page)


print(names(prefix="logs/a-"))
print(names(prefix="logs"))
print(names(prefix="logs", offset="logs/a-"))
print(names(prefix="logs", offset="logs/a-9"))
PROGRAM
)
echo "$seen"
[ "$seen" = "[]
['logs/a-1', 'logs/a-2', 'logs/b-1']
['logs/a-1', 'logs/a-2', 'logs/b-1']
['logs/b-1']" ]
