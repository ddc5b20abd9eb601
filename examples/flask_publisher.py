"""A web application that publishes; one Writer, shared by all requests.

gunicorn --workers 4 examples.flask_publisher:app                  # prefork: each child connects by itself
gunicorn --workers 4 --preload examples.flask_publisher:app        # the Writer is made before the fork: fine
gunicorn --worker-class gevent examples.flask_publisher:app        # monkey-patched: a publish blocks no other one
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
    """201 when nsqd has it; 503: it has not; 504: nobody knows."""
    try:
        writer.publish("clicks", request.get_data())
    except OutcomeUnknown as error:
        return f"{error}\n", 504
    except NotSent as error:
        return f"{error}\n", 503
    return f"{os.getpid()}\n", 201
