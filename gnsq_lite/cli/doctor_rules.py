"""Replacements for the names of pynsq and gnsq.  See docs/from_pynsq.rst and docs/from_gnsq.rst."""

from __future__ import annotations

#: Marks calls that run without an error but behave differently.
SILENT = "silent: "

#: Constructor -> (kind of object, text about its replacement).
MAKERS = {
    "pynsq": {
        "Reader": ("reader", "Reader(topic, channel, handler, ...); start it with reader.start()"),
        "Writer": ("writer", "Writer([addresses]); calls block, and raise errors"),
    },
    "gnsq": {
        "Reader": ("reader", "Reader(topic, channel, handler, ...)"),
        "Consumer": ("reader", "Reader(topic, channel, handler, ...)"),
        "Producer": ("writer", "Writer(addresses)"),
        "Nsqd": ("client", "gnsq_lite.http.NsqdClient, and Writer to publish by TCP"),
        "NsqdTCPClient": ("client", "Writer to publish, Reader to subscribe"),
        "NsqdHTTPClient": ("client", "gnsq_lite.http.NsqdClient"),
        "Lookupd": ("client", "gnsq_lite.http.LookupdClient"),
        "LookupdClient": ("client", "gnsq_lite.http.LookupdClient"),
    },
}

#: Texts for every Reader.
READERS = {
    "pynsq": [SILENT + "several handlers run at a time: pass concurrency=1 unless your handler is thread-safe"],
    "gnsq": [
        SILENT + "handlers run in threads unless the process is monkey-patched, several at a time: pass concurrency=1"
        " unless your handler is thread-safe",
    ],
}

_SAME = {
    "max_tries": "max_attempts=",
    "message_handler": "the third argument, handler",
    "name": "was removed; the logger is gnsq_lite.reader",
    "max_backoff_duration": "backoff=BackoffOptions(longest=seconds); for 0 use backoff=False",
    "tls_v1": "tls=True",
    "tls_options": "tls=TLSOptions(ca_file=..., cert_file=..., key_file=...); the server is verified",
    "snappy": 'compression="snappy"',
    "deflate": 'compression="deflate"',
    "output_buffer_timeout": SILENT + "is in seconds, not in milliseconds",
    "timeout": "connect_timeout=; Writer: publish_timeout=",
}
#: Constructor keyword -> its replacement.
KEYWORDS = {
    "pynsq": {
        **_SAME,
        "low_rdy_idle_timeout": "rdy_idle_timeout=",
        "lookupd_connect_timeout": "lookupd_timeout=, for the whole call",
        "lookupd_request_timeout": "lookupd_timeout=, for the whole call",
        "msg_timeout": SILENT + "is in seconds, not in milliseconds",
        "reconnect_interval": "reconnect_delay= and max_reconnect_delay=",
        "io_loop": "was removed: no event loop is run",
    },
    "gnsq": {
        **_SAME,
        "max_concurrency": "concurrency=; for 0 use 1, for -1 the number of processors",
        "async": "message.enable_async() in the handler",
        "requeue_delay": SILENT + "is in seconds, not in milliseconds",
        "low_ready_idle_timeout": "rdy_idle_timeout=",
        "backoff_on_requeue": "raise Requeue(backoff=False) in the handler",
    },
}

#: Signal or attribute of a Reader or Writer -> its replacement.
ATTRIBUTES = {
    "pynsq": {
        "pub": "writer.publish(topic, body), which blocks; or publish_nowait(topic, body) and add_done_callback",
        "mpub": "writer.multipublish(topic, bodies), which blocks",
        "dpub": SILENT + "writer.publish(topic, body, defer=seconds); dpub() had milliseconds, as the second argument",
        "set_message_handler": "the third argument of Reader",
        "giving_up": "on_give_up=",
        "process_message": "the handler",
        "preprocess_message": "call it in the handler",
        "validate_message": "call it in the handler",
        "heartbeat": "was removed: the Reader answers heartbeats while handlers run",
        "disabled": "reader.set_max_in_flight(0)",
        "query_lookupd": "was removed: the Reader queries nsqlookupd by itself",
        "connect_to_nsqd": "nsqd_tcp_addresses=",
        "io_loop": "was removed: no event loop is run",
        "conns": "reader.stats()",
    },
    "gnsq": {
        "on_message": "the third argument of Reader: def handler(message)",
        "on_response": "was removed: a publish returns after nsqd's OK",
        "on_error": "on_error=",
        "on_finish": "was removed: do it at the end of the handler",
        "on_requeue": "on_failure=, for failed handlers",
        "on_giving_up": "on_give_up=",
        "on_auth": "was removed: a refused AUTH is an error",
        "on_exception": "on_failure=",
        "on_close": "the code after reader.join()",
        "conns": "reader.stats()",
        "is_running": "reader.stats()",
        "is_starved": SILENT + "is a method: reader.is_starved()",
        "total_ready_count": "reader.stats()",
        "total_in_flight": "reader.stats()",
        "query_nsqd": "was removed: the Reader connects by itself",
        "query_lookupd": "was removed: the Reader queries nsqlookupd by itself",
        "connect_to_nsqd": "nsqd_tcp_addresses=",
    },
}

#: Attribute of a message -> its replacement.
MESSAGE = {
    "timestamp": SILENT + "is a datetime; use message.timestamp_ns for nanoseconds",
    "has_responded": "is a property: remove the parentheses",
    "is_async": "is a property: remove the parentheses",
    "on": "was removed: messages have no events",
    "on_finish": "was removed",
    "on_requeue": "was removed",
    "on_touch": "was removed",
}

#: Functions, classes and errors of the module itself.
NAMES = {
    "pynsq": {
        "run": "reader.start() for each Reader, with block=False except for the last",
        "Error": "gnsq_lite.NSQError, raised by publish(), not passed to a callback",
        "LegacyReader": "Reader",
        "SyncConn": "Writer, or Reader",
        "AsyncConn": "Writer, or Reader",
        "BackoffTimer": "backoff=BackoffOptions(...)",
    },
    "gnsq": {
        "NSQRequeueMessage": "raise Requeue(delay in seconds)",
        "NSQException": "gnsq_lite.NSQError",
        "NSQNoConnections": "gnsq_lite.NotSent",
        "NSQSocketError": "gnsq_lite.NSQError",
        "NSQErrorCode": "gnsq_lite.NsqdError",
        "BatchHandler": "batch_size= and batch_wait= of Reader: the handler gets a list",
        "LogGiveupHandler": "on_give_up=; by default a message that is given up is logged",
        "JSONLogGiveupHandler": "on_give_up=",
        "NsqdGiveupHandler": 'on_give_up=; a Worker takes on_give_up="topic:NAME"',
        "QueueHandler": "is not needed: concurrency= calls the handler in its own thread or greenlet",
        "ChannelHandler": "is not needed: concurrency= calls the handler in its own thread or greenlet",
        "SentryExceptionHandler": "on_failure=",
        "BackoffTimer": "backoff=BackoffOptions(...)",
    },
}
