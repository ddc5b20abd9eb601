"""A wall clock that jumps, seen by everything in a process: Python, gevent, C.  The monotonic clock stays as it is.

A library that is preloaded answers for the system (``clock.c``), so a process has such a clock from its start or not at
all, and the processes that it starts have the same.  Needs Linux and a C compiler.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
VARIABLE = "GNSQ_TEST_CLOCK"


def environment(folder: Path) -> dict[str, str]:
    """Build the library in *folder*; return the variables to start a process with.

    Raises OSError or subprocess.CalledProcessError where there is no compiler.
    """
    library, offset = folder / "clock.so", folder / "offset"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    offset.write_bytes(struct.pack("=q", 0))
    return {"LD_PRELOAD": str(library), VARIABLE: str(offset)}


def jumps() -> bool:
    """Whether this process has a clock that can jump."""
    return VARIABLE in os.environ


def jump(seconds: int) -> None:
    """Set the difference between the wall clock and the machine's clock, in seconds, until the next jump."""
    with open(os.environ[VARIABLE], "r+b", buffering=0) as offset:
        offset.write(struct.pack("=q", seconds))
