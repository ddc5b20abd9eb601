"""Processes that are kept running, told to end in order, and asked how they are.  Knows nothing of NSQ.

Nothing here imports gevent or a user's code: a supervisor stays small, is never monkey-patched, and cannot be taken
down by what its processes load.
"""
