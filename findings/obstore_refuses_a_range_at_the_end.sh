#!/bin/sh
# obstore 0.12.1 cuts a range that goes beyond the end of an object, but a range that begins at the end raises GenericError,
# which is no OSError, while a missing object raises the builtin FileNotFoundError.  An empty object has no range at all.
# Depends on it: ObjectStore.read() in gnsq_lite/recording/objectstore.py, which returns b"" there.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check obstore==0.12.1
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import sys

import obstore
from obstore.store import LocalStore, MemoryStore

for store in (MemoryStore(), LocalStore(sys.argv[1])):
    obstore.put(store, "five", b"12345")
    obstore.put(store, "empty", b"")
    seen = []
    for name, start in (("five", 3), ("five", 5), ("empty", 0), ("missing", 0)):
        try:
            seen.append(bytes(obstore.get_range(store, name, start=start, length=10)).decode())
        except Exception as error:
            seen.append(f"{type(error).__name__} {isinstance(error, OSError)}")
    print(type(store).__name__, *seen, sep=", ")
PROGRAM
)
echo "$seen"
[ "$seen" = "MemoryStore, 45, GenericError False, GenericError False, FileNotFoundError True
LocalStore, 45, GenericError False, GenericError False, FileNotFoundError True" ]
