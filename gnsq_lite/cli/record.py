"""``gnsq-lite record``: a daemon that records a channel."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from gnsq_lite.cli import flags
from gnsq_lite.cli.completion import channel_names, topic_names
from gnsq_lite.cli.output import Progress, errors
from gnsq_lite.cli.params import CONNECTION, OUTPUT, Duration, Size, option
from gnsq_lite.cli.params import command as tool
from gnsq_lite.cli.recording import opened, storage
from gnsq_lite.net.signals import in_main_thread
from gnsq_lite.options import format_address, parse_address
from gnsq_lite.supervise import logs

_LIMITS = ("max_in_flight", "connections_per_nsqd", "connect_timeout", "msg_timeout")
#: Seconds between two looks at what retention removes.
TIDY = 30.0


@tool(
    "record",
    example="record clicks archive /var/lib/clicks --nsqd-tcp-address 127.0.0.1:4150 --retain 7d --retain-bytes 200g",
)
@click.argument("topic", shell_complete=topic_names)
@click.argument("channel", shell_complete=channel_names)
@click.argument("url")
@flags.addresses
@storage
@option("--retain", type=Duration(), default=0.0, help="How long rows stay, such as 7d; by default for ever.")
@option("--retain-bytes", type=Size(), help="Bytes of all logs that stay, such as 200g.")
@option("--until-empty", is_flag=True, help="End when the backlog of this moment is recorded.")
@option("--metrics", metavar="HOST:PORT", section=OUTPUT, help="Serve /metrics, in Prometheus' text format.")
@option("--max-in-flight", type=click.IntRange(1), default=2500, show_default=True, section=CONNECTION)
@option(
    "--connections-per-nsqd",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    section=CONNECTION,
    help="Connections, each with --max-in-flight; more where a write takes long.",
)
@option(
    "--msg-timeout", type=Duration(low=1.0), section=CONNECTION, help="How long nsqd waits for FIN; default: nsqd's."
)
@option(
    "--connect-timeout",
    type=Duration(low=0.01),
    default="30s",
    show_default=True,
    section=CONNECTION,
    help="How long --until-empty waits for an nsqd.",
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
    retain: float,
    retain_bytes: int | None,
    until_empty: bool,
    metrics: str | None,
    youzan: bool,
    **given: Any,
) -> int:
    """Record CHANNEL of TOPIC in URL, a directory or an object store, until SIGTERM or Ctrl-C.

    A message is finished only after its row is durable.  Start as many recorders as needed: each writes its own log.
    """
    from gnsq_lite.recording.backlog import Backlog
    from gnsq_lite.recording.options import RecorderOptions
    from gnsq_lite.recording.receiver import ReaderReceiver
    from gnsq_lite.recording.recorder import Recorder

    logs.configure("brief", "warning", "main")
    limits = {name: given.pop(name) for name in _LIMITS}
    client = {**flags.where(nsqds, lookupds), **flags.secured(given)}
    options = RecorderOptions(topic=topic, channel=channel, client=client, include_youzan=youzan, **limits)
    recording = opened(url, storage)
    recording.create(topic, channel)
    writer = recording.take()
    recorder = Recorder(
        writer,
        recording.reader(writer.name),
        ReaderReceiver(options),
        options,
        make_room=lambda: recording.trim(retain, retain_bytes) if retain or retain_bytes else 0,
    )
    stop = threading.Event()
    before = _on_signals(stop.set)
    server = serve(metrics, lambda: metrics_text(recorder, recording)) if metrics else None
    try:
        with Progress(f"{writer.name}") as progress:
            recorder.start()
            if until_empty:
                recorder.expect(time.time_ns())
            backlog = Backlog(recorder, options)
            tidied = time.monotonic()
            while not stop.wait(0.1):
                recorder.check()
                progress.show(rows=recorder.stored, bytes=recorder.stored_bytes)
                if until_empty and backlog.is_read():
                    break
                if (retain or retain_bytes) and time.monotonic() - tidied >= TIDY:
                    tidied = time.monotonic()
                    recorder.index()
                    recording.trim(retain, retain_bytes)
    finally:
        recorder.stop()
        if server is not None:
            server.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
    rows = f"{recorder.stored:,} rows, {recorder.stored_bytes:,} bytes, {recorder.dropped():,} copies dropped"
    errors.print(f"record: log {writer.name}: {rows}", markup=False)
    return 0


def _on_signals(do: Callable[[], None]) -> dict[int, Any]:
    """Call *do* at SIGTERM and SIGINT, in the main thread only; return the handlers before."""
    if not in_main_thread():
        return {}
    return {number: signal.signal(number, lambda *_: do()) for number in (signal.SIGTERM, signal.SIGINT)}


def metrics_text(recorder: Any, recording: Any) -> str:
    """Return the metrics of a recorder and its log in Prometheus' text format."""
    reader = recording.reader(recorder.log.name)
    bounds = reader.bounds()
    missing = recorder.missing()
    values = {
        "rows_total": ("counter", "Rows stored by this process", recorder.stored),
        "bytes_total": ("counter", "Bytes stored by this process", recorder.stored_bytes),
        "flush_seconds_total": ("counter", "Seconds spent in writes", recorder.flush_seconds),
        "copies_dropped_total": ("counter", "Copies of stored messages that were dropped", recorder.dropped()),
        "log_bytes": ("gauge", "Bytes of the log", reader.size()),
        "oldest_row": ("gauge", "Number of the first row of the log", bounds.first),
        "newest_row": ("gauge", "Number of the last row of the log", bounds.last),
        "unstored_messages": ("gauge", "Messages that are received and not stored", recorder.in_flight()),
        "missing_nsqds": ("gauge", "nsqds that are known and not subscribed to", len(missing)),
    }
    lines = []
    for name, (kind, text, value) in values.items():
        full = f"gnsq_recorder_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f'{full}{{log="{recorder.log.name}"}} {value}']
    reason = recorder.trouble().replace("\\", "").replace('"', "'").replace("\n", " ")
    for address in missing:
        lines.append(f'gnsq_recorder_missing_nsqd{{nsqd="{address}",reason="{reason}"}} 1')
    return "\n".join(lines) + "\n"


def serve(address: str, text: Callable[[], str]) -> ThreadingHTTPServer:
    """Serve ``/metrics`` in a thread, until the server's ``shutdown()``.  Raises OptionError, OSError."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log no request."""

    server = ThreadingHTTPServer(parse_address(address, default_port=9110, option="metrics"), Handler)
    errors.print(f"record: metrics at http://{format_address(server.server_address[:2])}/metrics", markup=False)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, name="gnsq_lite-metrics", daemon=True).start()
    return server
