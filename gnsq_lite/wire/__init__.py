"""NSQ's V2 protocol without I/O: encodes commands and decodes frames.

This package never reads a clock, opens a socket or yields to another greenlet; ``gnsq_lite.net`` does.
"""
