"""A web application that publishes.  All requests share one Writer.

gunicorn --workers 4 examples.flask_publisher:app                  # each child creates a Writer
gunicorn --workers 4 --preload examples.flask_publisher:app        # each child uses the Writer created before the fork
gunicorn --worker-class gevent examples.flask_publisher:app        # monkey-patched: requests publish concurrently
"""

from __future__ import annotations

import os

from flask import Flask, request

from gnsq_lite import Writer
from gnsq_lite.errors import NotSent, OutcomeUnknown

app = Flask(__name__)
writer = Writer(publish_timeout=5.0)  # NSQD_TCP_ADDRESSES; connects at the first publish


@app.post("/clicks")
def click() -> tuple[str, int]:
    """Return 201 if nsqd has the message, 503 if nsqd does not have it, or 504 if the outcome is unknown."""
    try:
        writer.publish("clicks", request.get_data())
    except OutcomeUnknown as error:
        return f"{error}\n", 504
    except NotSent as error:
        return f"{error}\n", 503
    return f"{os.getpid()}\n", 201
