#!/bin/sh
# gevent 26.9.0 calls Hub.handle_error, which a program may override, with the watcher whose callback raised.  If the
# callback has closed its own timer before, the watcher's args and callback are None by then: an override cannot tell by
# them whose callback it was.  A timer that is still open has both.
# Depends on it: _call() in gnsq_lite/net/loop.py, which catches what the library's callbacks raise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gevent==26.9.0
seen=$("$folder/venv/bin/python" - <<'PROGRAM'
import gevent

hub = gevent.get_hub()


def handle_error(context, kind, error, traceback):
    print(error, "args:", context.args, "callback:", context.callback and context.callback.__name__)


def fail(timer, closes):
    if closes:
        timer.close()
    raise ValueError("closed" if closes else "open")


hub.handle_error = handle_error
for closes in (False, True):
    timer = hub.loop.timer(0.001)
    timer.start(lambda owner, timer=timer, closes=closes: fail(timer, closes), "owner")
    gevent.sleep(0.05)
PROGRAM
)
echo "$seen"
[ "$seen" = "open args: ('owner',) callback: <lambda>
closed args: None callback: None" ]
