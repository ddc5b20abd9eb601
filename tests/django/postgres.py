"""A PostgreSQL of the tests' own, where its programs are found: in a folder of its own, on a Unix socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import STARTING, wait_for

PROGRAMS = ("initdb", "postgres", "psql")
DATABASES = ("shop", "other")


def is_there() -> bool:
    """Whether the programs are on PATH, and Django's driver is installed."""
    try:
        import psycopg  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        return False
    return all(shutil.which(name) for name in PROGRAMS)


class Postgres:
    """A running server with the databases ``shop`` and ``other``; the socket needs no password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sql(self, *statements: str, database: str = "postgres") -> str:
        """Run each of *statements* as the superuser and return the output."""
        each = [word for statement in statements for word in ("-c", statement)]
        command = ["psql", "-h", str(self.folder), "-U", "shop", "-d", database, "-qtA", *each]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return (self.folder / ".s.PGSQL.5432").exists() and self.sql("select 1") == "1"
        except subprocess.CalledProcessError:
            return False

    def keep(self) -> None:
        """Rename both databases to the templates of :meth:`new_databases`."""
        self.sql(*(f"alter database {name} rename to {name}_kept" for name in DATABASES))

    def new_databases(self) -> None:
        """Create both databases again from the kept templates."""
        dropped = (f"drop database if exists {name} with (force)" for name in DATABASES)
        self.sql(*dropped, *(f"create database {name} template {name}_kept" for name in DATABASES))

    def end_connections(self) -> int:
        """End every other connection, as an administrator does, or a restart; return how many there were."""
        ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        return int(self.sql(f"{ended} where datname in ('shop', 'other') and pid <> pg_backend_pid()"))


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start a PostgreSQL, as another user if this is root, which PostgreSQL refuses.  It ends with the test."""
    folder = Path(tempfile.mkdtemp(prefix="gnsq-pg-"))
    user = None
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody").pw_uid
        os.chown(folder, user, -1)
    server = None
    try:
        data = folder / "data"
        make = ["initdb", "-D", str(data), "-U", "shop", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(make, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=120, check=True)
        with (folder / "log").open("wb") as log:
            options = ["-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
            server = subprocess.Popen(
                ["postgres", "-D", str(data), *options], user=user, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        made = Postgres(folder)
        wait_for(made.is_up, STARTING)
        made.sql(*(f"create database {name}" for name in DATABASES))
        yield made
    finally:
        if server is not None:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)
