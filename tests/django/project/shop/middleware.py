"""Middleware of the project's own."""

from django.db import connection

from gnsq_lite.worker import Middleware


class Tracing(Middleware):
    def before(self, message):
        print(f"before: connection open: {connection.connection is not None}", flush=True)
