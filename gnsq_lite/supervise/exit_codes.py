"""Exit codes of the commands, of a worker and of its supervisor."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a process.  A command has OK, FAILED, USAGE, and 128 plus the number of a signal."""

    #: Done.  The worker was stopped, and every running handler has returned.
    OK = 0
    #: The command or the worker ended with an error that no retry can fix, and printed the error to standard error.
    FAILED = 1
    #: The command line, an option, or the module to import is wrong.  If a process ends with this code before any
    #: process has loaded the Worker, the supervisor ends too.
    USAGE = 2
    #: Handlers still ran at a second signal or at the drain limit.  A supervisor: a process failed while stopping.
    NOT_DRAINED = 3
    #: Source files changed (--reload).  The supervisor restarts the process and never returns this code itself.
    RELOAD = 75
    #: SIGINT ended the command.
    INTERRUPTED = 130
