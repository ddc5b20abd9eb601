"""The ``gnsq-lite`` program: one file per command, loaded when the command is called.

Exit codes: 0 success; 1 failure, with the reason on standard error; 2 wrong command line; 130 interrupted.
"""
