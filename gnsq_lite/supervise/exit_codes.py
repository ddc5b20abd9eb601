"""The exit codes of a worker and of its supervisor."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a worker ended."""

    #: It was stopped, and every running handler has finished.
    OK = 0
    #: An error that no retry can fix; standard error names it.
    FAILED = 1
    #: The command line, an option, or the module to import is wrong; it is not started again.
    USAGE = 2
    #: A second signal or the time limit cut handlers short; their messages went back to nsqd.
    NOT_DRAINED = 3
    #: Sources changed (--reload); the supervisor starts the process again.  Never seen outside.
    RELOAD = 75
