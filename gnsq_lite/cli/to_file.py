"""``gnsq-lite to-file``: write topics to files, as nsq_to_file does; FIN follows fsync."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gnsq_lite import Message, Reader
from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import topic_names
from gnsq_lite.cli.files import Layout, TopicFile
from gnsq_lite.cli.goflags import OUTPUT, Duration, go_command, option
from gnsq_lite.cli.output import errors
from gnsq_lite.cli.serving import Service, log_to_stderr
from gnsq_lite.errors import NSQError
from gnsq_lite.http import LookupdClient
from gnsq_lite.net.signals import in_main_thread

log = logging.getLogger("gnsq_lite.to_file")

_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}


class FileWriter:
    """The handler of one topic: writes a batch, syncs, returns."""

    def __init__(self, layout: Layout, topic: str) -> None:
        self._file = TopicFile(layout, topic)
        self._lock = threading.Lock()
        self.topic, self.count = topic, 0

    def __call__(self, batch: list[Message]) -> None:
        """Write and sync the batch: when this returns, it survives a power cut."""
        with self._lock:
            self._file.write([message.body for message in batch])
            self.count += len(batch)

    def look(self) -> None:
        """Begin a new file if the current one is due for rotation; a failure is a warning."""
        self._do(self._file.look, "no new file was begun")

    def reopen(self) -> None:
        """Close the file, so that the next batch opens a new one.  A failure is a warning."""
        self._do(self._file.close, "a file was not given its final name; the next start does it")

    def close(self) -> None:
        """Give the current file its final name."""
        with self._lock:
            self._file.close()

    def _do(self, what: Callable[[], None], failed: str) -> None:
        try:
            with self._lock:
                what()
        except OSError:
            log.warning(failed, exc_info=True)


class Hup:
    """Notes SIGHUP for another thread that waits for it."""

    def __init__(self) -> None:
        self.came = threading.Event()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note SIGHUP until the block ends; then it means what it did before."""
        if not in_main_thread():
            yield
            return
        before = signal.signal(signal.SIGHUP, lambda number, frame: self.came.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)


@contextmanager
def looking(writers: Callable[[], list[FileWriter]], every: float, hup: Hup) -> Iterator[None]:
    """Check the writers every *every* seconds, and reopen files on *hup*, until the block ends."""
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            is_hup = hup.came.wait(every)
            hup.came.clear()
            if ended.is_set():
                return
            for writer in writers():
                if is_hup:
                    writer.reopen()
                else:
                    writer.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        hup.came.set()
        thread.join()


class Topics:
    """Adds a Reader for each topic once: those that were named, or those that nsqlookupd knows and a pattern finds."""

    def __init__(
        self, layout: Layout, service: Service, pattern: str, make: Callable[[str, FileWriter], Reader]
    ) -> None:
        self._layout, self._service, self._make = layout, service, make
        self._pattern = re.compile(pattern)
        self._seen: set[str] = set()
        self._writers: dict[str, FileWriter] = {}

    def writers(self) -> list[FileWriter]:
        """Return the writers there are."""
        return list(self._writers.values())

    def add(self, topics: tuple[str, ...]) -> None:
        """Read topics that are new and match; report those that do not."""
        for topic in topics:
            if topic in self._seen:
                continue
            self._seen.add(topic)
            if not self._pattern.search(topic):
                log.warning("skipping topic %s: it does not match %s", topic, self._pattern.pattern)
                continue
            # Topics that share a file share what writes to it.
            name = topic if "<TOPIC>" in self._layout.filename_format else ""
            writer = self._writers.get(name)
            if writer is None:
                writer = FileWriter(self._layout, topic)
                self._writers = {**self._writers, name: writer}
            self._service.add(self._make(topic, writer))

    def discover(self, lookupds: list[str], options: Any) -> None:
        """Add the topics that the nsqlookupds know now; a failure is a warning."""
        for url in lookupds:
            try:
                with LookupdClient(url, options) as client:
                    self.add(client.topics())
            except NSQError:
                log.warning("could not get the topics from nsqlookupd", exc_info=True)


@contextmanager
def discovering(discover: Callable[[], None], every: float) -> Iterator[None]:
    """Call *discover* now and every *every* seconds, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        while True:
            discover()
            if ended.wait(every):
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


@go_command("to-file", versioned=True, example="to-file --topic clicks --output-dir /var/log/nsq --rotate-interval 1h")
@flags.addresses
@option("--topic", "topics", multiple=True, shell_complete=topic_names, help="Topic to read; may be repeated.")
@option("--topic-pattern", default="", metavar="REGEX", help="Read all topics in nsqlookupd that match.")
@option(
    "--topic-refresh",
    type=Duration(above=0.0),
    default="1m",
    show_default=True,
    help="Time between two searches for them.",
)
@flags.channel("nsq_to_file")
@option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/tmp"),
    show_default=True,
    section=OUTPUT,
)
@option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    section=OUTPUT,
    help="Where files grow; default: output-dir.",
)
@option(
    "--datetime-format",
    default="%Y-%m-%d_%H",
    show_default=True,
    section=OUTPUT,
    help="strftime format; a new value begins a new file.",
)
@option("--filename-format", default="<TOPIC>.<HOST><REV>.<DATETIME>.log", show_default=True, section=OUTPUT)
@option(
    "--host-identifier", default="", section=OUTPUT, help="<HOST>; may hold <SHORT_HOST> (the default), <HOSTNAME>."
)
@option("--gzip", is_flag=True, section=OUTPUT, help="Compress; each sync ends a gzip member.")
@option("--gzip-level", type=click.IntRange(1, 9), default=6, show_default=True, section=OUTPUT)
@option(
    "--rotate-size",
    type=click.IntRange(0),
    default=0,
    section=OUTPUT,
    help="Begin a new file after so many bytes.",
)
@option("--rotate-interval", type=Duration(), default=0.0, section=OUTPUT, help="Begin a new file after this time.")
@option(
    "--sync-interval",
    type=Duration(above=0.0),
    default="30s",
    show_default=True,
    section=OUTPUT,
    help="Sync after this time at the latest.",
)
@option("--skip-empty-files", is_flag=True, section=OUTPUT, help="Open a file only when a message comes.")
@flags.max_in_flight
@flags.http_timeouts(request=5.0)
@flags.consumer_opts
@option("--log-level", type=click.Choice([*_LEVELS, "fatal"]), default="warn", show_default=True, section=OUTPUT)
@option("--log-prefix", default="", section=OUTPUT, help="Text before each line of the log.")
@flags.security
def command(nsqds: tuple[str, ...], lookupds: tuple[str, ...], topics: tuple[str, ...], **options: Any) -> int:
    """Write each topic to files, one message a line.

    A message is finished only after its file was synced, so a kill at any moment loses none; what was not synced comes
    again.  No file is ever overwritten.  SIGHUP closes the files and opens them anew.
    """
    pattern, refresh = options.pop("topic_pattern"), options.pop("topic_refresh")
    if not topics and not pattern:
        raise click.UsageError("give --topic or --topic-pattern")
    if not topics and not flags.uses_lookupd(nsqds, lookupds):
        raise click.UsageError("--topic-pattern alone needs --lookupd-http-address")
    http, sync = flags.http_options(options), options.pop("sync_interval")
    once = log_to_stderr(_LEVELS.get(options.pop("log_level"), "critical"), options.pop("log_prefix"))
    hup, service = Hup(), Service(drain=10.0, once=once)
    make = _reader_of(flags.where(nsqds, lookupds), sync, options)
    try:
        found = Topics(_layout(options), service, pattern, make)
    except re.error as error:
        raise click.UsageError(f"--topic-pattern: {error}") from error
    discover = (lambda: found.discover(flags.lookupd_urls(lookupds), http)) if not topics else (lambda: None)
    try:
        with hup.listening(), looking(found.writers, sync, hup), discovering(discover, refresh):
            service.run(lambda: found.add(topics))
    finally:
        service.close()
        for writer in found.writers():
            writer.close()
            errors.print(f"{writer.topic}: {writer.count} messages written", markup=False)
    return 0


def _layout(options: dict[str, Any]) -> Layout:
    options["work_dir"] = options["work_dir"] or options["output_dir"]
    names = ("output_dir", "work_dir", "filename_format", "datetime_format", "host_identifier", "gzip", "gzip_level")
    return Layout(
        **{name: options.pop(name) for name in (*names, "rotate_size", "rotate_interval", "skip_empty_files")}
    )


def _reader_of(
    where: dict[str, Any], sync_interval: float, options: dict[str, Any]
) -> Callable[[str, FileWriter], Reader]:
    channel, most = options.pop("channel"), options.pop("max_in_flight")
    settings = flags.of_reader(options, max_attempts=0, requeue_delay=10.0)

    def make(topic: str, writer: FileWriter) -> Reader:
        limits: dict[str, Any] = {"batch_size": most, "batch_wait": sync_interval, "max_in_flight": most}
        return Reader(topic, channel, writer, **limits, **where, **settings)

    return make
