"""NSQ's V2 protocol without I/O: bytes in, values out.

Nothing here reads a clock, opens a socket or yields to another greenlet; ``gnsq_lite.net`` does.
"""
