"""Starts, restarts and stops processes, and serves their status.  No module here talks to nsqd.

No module here imports gevent or user code.  So a supervisor stays small, is never monkey-patched, and cannot crash
because of an error in user code.
"""
