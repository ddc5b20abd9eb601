"""The ``gnsq-lite`` program: one file per command, loaded when it is called.

Exit codes: 0 done; 1 it failed, and standard error says why; 2 the command line was wrong; 130 interrupted.
"""
