#!/bin/sh
# cronsim 2.8 treats the hour that the clock skips in spring in two ways, as Debian's cron does: a job at a fixed time of
# that hour runs at its end, but a job whose minutes are a step ("*/20") does not run at all.  In autumn, when the hour
# comes twice, the first runs once and the second runs six times.
# Depends on it: the paragraph about changes of the clock in docs/worker.rst, tests/unit/test_schedule.py.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cronsim==2.8
seen=$("$folder/venv/bin/python" - <<'PROGRAM'
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

zone = ZoneInfo("Europe/Berlin")
for expression in ("30 2 * * *", "*/20 2 * * *"):
    for day in (datetime(2026, 3, 29, tzinfo=zone), datetime(2026, 10, 25, tzinfo=zone)):
        due = []
        for time in CronSim(expression, day):
            if time.date() != day.date():
                break
            due.append(time.strftime("%H:%M%z"))
        print(expression, day.date(), *due)
PROGRAM
)
echo "$seen"
[ "$seen" = "30 2 * * * 2026-03-29 03:00+0200
30 2 * * * 2026-10-25 02:30+0200
*/20 2 * * * 2026-03-29
*/20 2 * * * 2026-10-25 02:00+0200 02:20+0200 02:40+0200 02:00+0100 02:20+0100 02:40+0100" ]
