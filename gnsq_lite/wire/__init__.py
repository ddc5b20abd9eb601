"""NSQ's V2 protocol without I/O: encodes commands and decodes frames.

This package never reads a clock, opens a socket or switches greenlets.
"""
