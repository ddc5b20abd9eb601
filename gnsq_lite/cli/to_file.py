"""``gnsq-lite to-file``: write topics to files, as nsq_to_file does; FIN follows fsync."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gnsq_lite import Message, Reader
from gnsq_lite.cli import flags
from gnsq_lite.cli.files import Layout, TopicFile
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.serving import serve
from gnsq_lite.supervise import logs

log = logging.getLogger("gnsq_lite.to_file")

#: Seconds between two looks whether a file is due of which nothing more is written.
_LOOK = 1.0


class FileWriter:
    """The handler of one topic: writes a batch, syncs, returns."""

    def __init__(self, layout: Layout, topic: str) -> None:
        self._file = TopicFile(layout, topic)
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, batch: list[Message]) -> None:
        """Write the batch; when it returns, all of it survives a power cut."""
        with self._lock:
            self._file.write([message.body for message in batch])
            self.count += len(batch)

    def look(self) -> None:
        """Give the current file its final name if its time is over; a failure is a warning."""
        try:
            with self._lock:
                self._file.finish_if_due()
        except OSError:
            log.warning("a file was not given its final name; the next start does it", exc_info=True)

    def close(self) -> None:
        """Give the current file its final name."""
        with self._lock:
            self._file.close()


@contextmanager
def looking(writers: Collection[FileWriter], every: float = _LOOK) -> Iterator[None]:
    """Have the writers look *every* so many seconds, until the block ends: a topic may be silent for long."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(every):
            for writer in writers:
                writer.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@click.command("to-file")
@flags.addresses
@click.option("--topic", "topics", multiple=True, required=True, help="Topic to read; may be repeated.")
@click.option("--channel", default="nsq_to_file", show_default=True)
@click.option("--output-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("."), show_default=True)
@click.option(
    "--work-dir", type=click.Path(file_okay=False, path_type=Path), help="Where files grow; default: output-dir."
)
@click.option("--datetime-format", default="%Y-%m-%d_%H", show_default=True, help="strftime; a new value, a new file.")
@click.option("--filename-format", default="<TOPIC>.<HOST><REV>.<DATETIME>.log", show_default=True)
@click.option("--host-identifier", default="", help="<HOST> in file names; default: this host's name.")
@click.option("--gzip", "compress", is_flag=True, help="Compress; each sync is a gzip member of its own.")
@click.option("--gzip-level", type=click.IntRange(1, 9), default=6, show_default=True)
@click.option("--rotate-size", type=click.IntRange(0), default=0, help="Begin a new file after so many bytes.")
@click.option(
    "--rotate-interval", type=click.FloatRange(0), default=0.0, help="Begin a new file after so many seconds."
)
@click.option(
    "--sync-interval", type=click.FloatRange(0.01, 30), default=1.0, show_default=True, help="Seconds at most."
)
@click.option("--max-in-flight", type=click.IntRange(1), default=200, show_default=True)
@flags.security
def command(
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    topics: tuple[str, ...],
    channel: str,
    output_dir: Path,
    work_dir: Path | None,
    datetime_format: str,
    filename_format: str,
    host_identifier: str,
    compress: bool,
    gzip_level: int,
    rotate_size: int,
    rotate_interval: float,
    sync_interval: float,
    max_in_flight: int,
    **options: Any,
) -> int:
    """Write each topic to files, one message a line.

    A message is finished only after its file was synced, so a kill at any moment loses none; what was not synced comes
    again.  A file has its final name once it is whole; no file is ever overwritten.
    """
    layout = Layout(
        output_dir=output_dir,
        work_dir=work_dir or output_dir,
        filename_format=filename_format,
        datetime_format=datetime_format,
        host_identifier=host_identifier,
        gzip=compress,
        gzip_level=gzip_level,
        rotate_size=rotate_size,
        rotate_interval=rotate_interval,
    )
    keywords = {**flags.where(nsqds, lookupds), **flags.secured(options)}
    logs.configure("brief", "warning", "main")  # what recovery warns of comes before serve() does this
    handlers = {topic: FileWriter(layout, topic) for topic in dict.fromkeys(topics)}
    readers = [
        Reader(
            topic,
            channel,
            handler,
            batch_size=max_in_flight,
            batch_wait=sync_interval,
            max_in_flight=max_in_flight,
            max_attempts=0,
            **keywords,
        )
        for topic, handler in handlers.items()
    ]
    try:
        with looking(handlers.values()):
            serve(readers, drain=10.0)
    finally:
        for topic, handler in handlers.items():
            handler.close()
            errors.print(f"{topic}: {handler.count} messages written", markup=False)
    return 0
