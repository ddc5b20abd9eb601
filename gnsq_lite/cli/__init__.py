"""The ``gnsq-lite`` program.  Each command has its own module, which is imported when the command is called.

Exit codes: 0 success; 1 failure, with the reason on standard error; 2 wrong command line; 130 interrupted.
"""
