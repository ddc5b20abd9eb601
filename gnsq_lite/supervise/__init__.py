"""Keeps processes running, ends them in order, and serves their status.  Knows nothing of NSQ.

Nothing here imports gevent or a user's code: a supervisor stays small, is never monkey-patched, and cannot be taken
down by what its processes load.
"""
