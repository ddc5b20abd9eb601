"""``gnsq-lite record``: record a channel until SIGTERM or Ctrl-C."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import channel_names, topic_names
from gnsq_lite.cli.output import Progress, errors
from gnsq_lite.cli.params import CONNECTION, OUTPUT, Duration, Size, option
from gnsq_lite.cli.params import command as tool
from gnsq_lite.cli.recording import opened, storage
from gnsq_lite.errors import NSQConnectionError
from gnsq_lite.net.signals import Stages, in_main_thread
from gnsq_lite.net.waiting import wait_any
from gnsq_lite.options import format_address, parse_address
from gnsq_lite.supervise import logs
from gnsq_lite.supervise.merged import Document, empty
from gnsq_lite.supervise.status import Page, StatusServer, Verdict
from gnsq_lite.version import __version__

if TYPE_CHECKING:  # pyarrow is installed by an extra
    from gnsq_lite.recording.recorder import Recorder
    from gnsq_lite.recording.recording import Recording

#: Parameters of the command that are fields of RecorderOptions.
_OPTIONS = (
    *("retain", "retain_bytes", "parquet", "seal", "seal_after"),
    *("max_in_flight", "connections_per_nsqd", "connect_timeout", "msg_timeout"),
)


@tool(
    "record",
    example="record clicks archive /var/lib/clicks --nsqd-tcp-address 127.0.0.1:4150 --retain 7d --retain-bytes 200g",
)
@click.argument("topic", shell_complete=topic_names)
@click.argument("channel", shell_complete=channel_names)
@click.argument("url")
@flags.addresses
@storage
@option("--retain", type=Duration(), default=0.0, help="Remove rows after this time, such as 7d; default: never.")
@option("--retain-bytes", type=Size(), help="Maximum bytes of all logs, such as 200g.")
@option("--parquet", is_flag=True, help="Turn finished files of all logs into Parquet files, in URL/parquet.")
@option("--seal", type=Size(), default="64m", show_default=True, help="Recorded bytes of a Parquet file.")
@option(
    "--seal-after",
    type=Duration(low=1.0),
    default="10m",
    show_default=True,
    help="Time after which fewer bytes become a Parquet file; less than 1 MB waits for an hour.",
)
@option("--until-empty", is_flag=True, help="Exit after 2 s without a message published before the start.")
@option("--metrics", metavar="HOST:PORT", section=OUTPUT, help="Serve /metrics, /healthz and /readyz.")
@option(
    "--max-in-flight",
    type=click.IntRange(1),
    default=2500,
    show_default=True,
    section=CONNECTION,
    help="Maximum messages of one connection that are not on disk yet.",
)
@option(
    "--connections-per-nsqd",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    section=CONNECTION,
    help="Connections per nsqd, each with --max-in-flight; more connections help if writes take long.",
)
@option(
    "--msg-timeout",
    type=Duration(low=1.0),
    section=CONNECTION,
    help="Time after which nsqd requeues an unfinished message; default: nsqd's setting.",
)
@option(
    "--connect-timeout",
    type=Duration(low=0.01),
    default="30s",
    show_default=True,
    section=CONNECTION,
    help="Time for which --until-empty waits for an nsqd.",
)
@option("--youzan", is_flag=True, help="Also record partition, internal id, trace id and headers of Youzan's messages.")
@flags.security
def command(
    topic: str,
    channel: str,
    url: str,
    nsqds: tuple[str, ...],
    lookupds: tuple[str, ...],
    storage: tuple[str, ...],
    until_empty: bool,
    metrics: str | None,
    youzan: bool,
    **given: Any,
) -> int:
    """Record CHANNEL of TOPIC in URL, a directory or an object store, until SIGTERM, Ctrl-C or an error.

    A message is finished only after its row is durable.  Several recorders may run at the same time.  Each recorder
    writes its own log.
    """
    recording = opened(url, storage)
    from gnsq_lite.recording.daemon import record, running_recorder, seldom_collected
    from gnsq_lite.recording.options import RecorderOptions

    logs.configure("brief", "warning", "main")
    chosen = {name: given.pop(name) for name in _OPTIONS}
    client = {**flags.where(nsqds, lookupds), **flags.secured(given)}
    options = RecorderOptions(topic=topic, channel=channel, client=client, include_youzan=youzan, **chosen)
    stages, numbers = Stages(), (signal.SIGTERM, signal.SIGINT) if in_main_thread() else ()

    def begin_drain(number: int, frame: object = None) -> None:
        stages.begin_drain(number)
        for each in numbers:  # a second signal ends the process; nsqd sends unfinished messages again
            signal.signal(each, signal.SIG_DFL)

    with (
        seldom_collected(),
        stages.installed((number, begin_drain) for number in numbers),
        running_recorder(recording, options) as recorder,
        Progress(recorder.log.name) as progress,
    ):
        if metrics:
            serve(metrics, RecorderPages(recorder, recording))
        record(
            recorder,
            recording,
            options,
            functools.partial(wait_any, [stages.drain]),
            until_empty=until_empty,
            show=lambda: progress.show(rows=recorder.stored, bytes=recorder.stored_bytes),
        )
    rows = f"{recorder.stored:,} rows, {recorder.stored_bytes:,} bytes, {recorder.dropped():,} copies dropped"
    errors.print(f"record: log {recorder.log.name}: {rows}", markup=False)
    return 0


class RecorderPages:
    """The status pages of a recorder.  ``/`` is the live page of a worker, without handlers."""

    def __init__(self, recorder: Recorder, recording: Recording) -> None:
        self._recorder, self._recording = recorder, recording

    def metrics(self) -> Page:
        """Return the metrics of the recorder and its log in Prometheus' text format."""
        recorder, name = self._recorder, self._recorder.log.name
        reader = self._recording.reader(name)
        bounds, missing = reader.bounds(), recorder.missing()
        values = {
            "rows_total": ("counter", "Rows stored by this process", recorder.stored),
            "bytes_total": ("counter", "Bytes stored by this process", recorder.stored_bytes),
            "flush_seconds_total": ("counter", "Seconds spent in writes", recorder.flush_seconds),
            "copies_dropped_total": ("counter", "Dropped copies of stored messages", recorder.dropped()),
            "connections_lost_total": ("counter", "Lost connections to nsqd, counted after SUB", recorder.lost()),
            "log_bytes": ("gauge", "Bytes of the log", reader.size()),
            "oldest_row": ("gauge", "Number of the first row of the log", bounds.first),
            "newest_row": ("gauge", "Number of the last row of the log", bounds.last),
            "unstored_messages": ("gauge", "Messages received and not stored yet", recorder.in_flight()),
            "missing_nsqds": ("gauge", "Known nsqds without a subscription", len(missing)),
        }
        lines = []
        for metric, (kind, text, value) in values.items():
            full = f"gnsq_recorder_{metric}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f'{full}{{log="{name}"}} {value}']
        reason = recorder.trouble().replace("\\", "").replace('"', "'").replace("\n", " ")
        lines += [f'gnsq_recorder_missing_nsqd{{nsqd="{each}",reason="{reason}"}} 1' for each in missing]
        return "text/plain; version=0.0.4", ("\n".join(lines) + "\n").encode()

    def health(self) -> Verdict:
        """Return True, because a recorder that fails ends its process."""
        return True, {"pid": os.getpid()}

    def ready(self) -> Verdict:
        """Return whether the recorder is subscribed to an nsqd."""
        return self._recorder.is_connected(), {"missing": self._recorder.missing()}

    def history(self) -> Document:
        """Return no samples: the page has no charts."""
        return {"samples": []}

    def running(self) -> Document:
        """Return no calls: the recorder has no handlers."""
        return {"calls": [], "silent": []}

    def live(self, brief: bool) -> Document:
        """Return the live page's document without handlers."""
        return empty(__version__, time.time())


def serve(address: str, pages: RecorderPages) -> None:
    """Serve the pages in a thread until the process ends.  Raises OptionError, NSQConnectionError."""
    host, port = parse_address(address, default_port=9110, option="metrics")
    server = StatusServer(pages, (host, port))
    try:
        server.start()
    except OSError as error:
        raise NSQConnectionError(address, f"cannot serve /metrics: {error.strerror or error}") from error
    errors.print(f"record: metrics at http://{format_address((host, server.port))}/metrics", markup=False)
