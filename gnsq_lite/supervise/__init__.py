"""Starts, restarts and stops processes, and serves their status.  No module here depends on NSQ.

No module here imports gevent or user code.  So a supervisor stays small and is never monkey-patched, and an error in
user code cannot crash it.
"""
