#!/bin/sh
# A greenlet of gevent 26.9.0 begins with an empty contextvars context, while a task of asyncio begins with a copy of the
# context that creates it.  So spans of tracing and fields of logs do not reach gevent.spawn(), unless the caller passes
# contextvars.copy_context().run.
# Depends on it: the advice about spans in docs/handlers.rst, "Spans or log fields are missing" in docs/troubleshooting.rst.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check gevent==26.9.0
seen=$("$folder/venv/bin/python" - "$folder" <<'PROGRAM'
import asyncio
import contextvars

import gevent

request = contextvars.ContextVar("request", default="none")
request.set("42")


async def in_task() -> str:
    async def read() -> str:
        return request.get()

    return await asyncio.create_task(read())


print("gevent.spawn:", gevent.spawn(request.get).get())
print("gevent.spawn with a copy:", gevent.spawn(contextvars.copy_context().run, request.get).get())
print("asyncio.create_task:", asyncio.run(in_task()))
PROGRAM
)
echo "$seen"
[ "$seen" = "gevent.spawn: none
gevent.spawn with a copy: 42
asyncio.create_task: 42" ]
