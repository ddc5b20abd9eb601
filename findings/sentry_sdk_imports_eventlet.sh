#!/bin/sh
# sentry-sdk 2.75.0 imports eventlet 0.41.3 wherever it is installed, although no program patches with eventlet.
# eventlet then warns that it is deprecated, with a class that is no subclass of DeprecationWarning, so the warning is
# shown by default, and Python's -W error turns the import of sentry_sdk into an exception.
# Depends on it: EVENTLET_TESTS in tests/conftest.py, because tests/system/test_environments.py needs eventlet.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sentry-sdk==2.75.0 eventlet==0.41.3
seen=$("$folder/venv/bin/python" - <<'PROGRAM'
import sys
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import sentry_sdk

names = [each.category.__name__ for each in caught if each.category.__module__.startswith("eventlet")]
print("eventlet" in sys.modules, names, [issubclass(each.category, DeprecationWarning) for each in caught][:1])
PROGRAM
)
echo "$seen"
[ "$seen" = "True ['EventletDeprecationWarning'] [False]" ]
