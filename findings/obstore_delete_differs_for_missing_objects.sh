#!/bin/sh
# obstore 0.12.1: to delete a list of objects of which one is missing raises FileNotFoundError with LocalStore, which has
# deleted the others nevertheless, also those after the missing one.  With MemoryStore it is no error.
# Depends on it: ObjectStore.remove() in gnsq_lite/recording/objectstore.py.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import sys

import obstore
from obstore.store import LocalStore, MemoryStore

for store in (MemoryStore(), LocalStore(sys.argv[1], mkdir=True)):
    for name in ("a", "b"):
        obstore.put(store, name, b"x")
    try:
        obstore.delete(store, ["a", "missing", "b"])
        seen = "no error"
    except FileNotFoundError:
        seen = "FileNotFoundError"
    left = [each["path"] for page in obstore.list(store) for each in page if each["path"] in ("a", "b")]
    print(type(store).__name__, seen, "left:", left)
PROGRAM
)
echo "$seen"
[ "$seen" = "MemoryStore no error left: []
LocalStore FileNotFoundError left: []" ]
