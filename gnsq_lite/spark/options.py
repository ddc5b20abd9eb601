"""Parses Spark's options into frozen dataclasses.  An unknown name raises OptionError.  Errors never show secrets.

Spark passes every option as text with a case-insensitive name.  Each field below declares an option with its type,
default, range and documentation.  The option's name is the field's name in camelCase.  Durations are milliseconds
(``...Ms``), as in Spark.  Sizes may have a suffix (``64k``, ``16m``, ``1g``).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_choice, check_ranges
from gnsq_lite.options import ConnectionOptions, TLSOptions, parse_address
from gnsq_lite.recording.location import is_remote, local_directory, remote_url, without_password
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.units import parse_duration, parse_size, parse_time
from gnsq_lite.wire.names import check_channel, check_topic

_T = TypeVar("_T")

#: Names that Spark adds to the options of a source or a sink.  :func:`parse` ignores these names.
SPARK_NAMES = frozenset({"checkpointlocation", "queryname", "outputmode", "maxrecordsperfile"})
_SPECIAL = {
    "nsqd_tcp_addresses": "nsqdTCPAddresses",
    "nsqd_http_addresses": "nsqdHTTPAddresses",
    "lookupd_http_addresses": "lookupdHTTPAddresses",
}
_SECRET = re.compile(r"secret|password|token|key$", re.IGNORECASE)
_BUNDLES = ("nsq", "storage")
#: Options of Spark's Kafka source and of an earlier version of this source -> the option to use.
TWINS = {
    "onnullbody": "onBadRow",
    "subscribe": "topic",
    "kafka.bootstrap.servers": "nsqdTCPAddresses",
    "spooldir": "recording",
}


def opt(
    default: Any, doc: str, *, low: float | None = None, high: float | None = None, kind: str = "", shown: bool = True
) -> Any:
    """Declare an option.  *kind* ``"bytes"`` allows size suffixes, ``"time"`` a time or an age, converted to ms.

    ``shown=False`` hides the value in reprs.
    """
    bounds = {} if low is None else {"low": low, "high": math.inf if high is None else high}
    return field(default=default, repr=shown, metadata={"doc": doc, "kind": kind, "unit": kind, **bounds})


def camel(name: str) -> str:
    """Return the name of the option whose field is *name*."""
    if name in _SPECIAL:
        return _SPECIAL[name]
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def seconds_of(text: str) -> float:
    """Parse a maxTriggerDelay such as 500ms, 30s, 15m, 1h or 1d, and return seconds.  Raises OptionError."""
    try:
        seconds = parse_duration(text.strip().lower())
    except ValueError:
        seconds = 0.0
    if seconds <= 0.0:
        why = "must be a duration such as 500ms, 30s, 15m, 1h, 1d or 2 minutes"
        raise OptionError("maxTriggerDelay", text, why)
    return seconds


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options that the source and the sink share."""

    nsqd_tcp_addresses: tuple[str, ...] = opt((), "comma-separated host:port of nsqds")
    lookupd_http_addresses: tuple[str, ...] = opt((), "comma-separated host:port of nsqlookupds")
    nsq: Mapping[str, Any] = field(
        default_factory=dict, repr=False, metadata={"doc": "connection options, given as nsq.NAME", "kind": ""}
    )
    dialect: Literal["nsq", "youzan"] = opt("nsq", "nsq, or youzan for Youzan's servers")

    def check_addresses(self) -> None:
        """Raise OptionError if no address is given, or an address is invalid."""
        if not self.nsqd_tcp_addresses and not self.lookupd_http_addresses:
            raise OptionError("nsqdTCPAddresses", (), "give nsqdTCPAddresses or lookupdHTTPAddresses")
        for address in self.nsqd_tcp_addresses:
            parse_address(address, default_port=4150, option="nsqdTCPAddresses")
        for address in self.lookupd_http_addresses:
            parse_address(address, default_port=4161, option="lookupdHTTPAddresses")

    def client_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of a Reader or a Writer: addresses, TLS, AUTH and other options."""
        return {
            "nsqd_tcp_addresses": list(self.nsqd_tcp_addresses),
            "lookupd_http_addresses": list(self.lookupd_http_addresses),
            "dialect": self.dialect,
            **self.nsq,
        }


@dataclass(frozen=True, kw_only=True)
class SourceOptions(CommonOptions):
    """Options of the source: for a stream that records a channel, and for reads of a recording."""

    recording: str = opt(
        "", "path or URL of the recording, readable by the executors; required; without topic also several, or a parent"
    )
    topic: str = opt("", "topic to record; without a topic the source only reads the recording")
    channel: str = opt("", "channel to record")
    storage: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata={"doc": "settings of an object store, given as nsq.storage.NAME", "kind": ""},
    )
    starting_offsets: str = opt(
        "", "earliest, latest, or JSON of log names and rows; default: earliest for a batch, latest for a stream"
    )
    starting_timestamp: int | None = opt(
        None, "start at the first row published at this time: ms since 1970, ISO, or an age such as 2h", kind="time"
    )
    ending_offsets: str = opt("", "batch: latest, or JSON of log names and rows")
    ending_timestamp: int | None = opt(None, "batch: end before the first row published at this time", kind="time")
    max_offsets_per_trigger: int | None = opt(None, "maximum rows of a micro-batch", low=1)
    min_offsets_per_trigger: int | None = opt(None, "minimum rows of a micro-batch", low=1)
    max_trigger_delay: str = opt("15m", "maximum wait for minOffsetsPerTrigger: 500ms, 30s, 15m, 2 minutes")
    min_partitions: int | None = opt(
        None, "minimum tasks of a batch; default: one per 10,000 rows and core, or per 100,000 rows", low=1, high=4096
    )
    fail_on_data_loss: bool = opt(True, "fail if rows are missing: recording replaced, or rows removed by retention")
    max_in_flight: int = opt(2500, "recording: messages in flight per connection", low=1, high=1_000_000)
    connections_per_nsqd: int = opt(1, "recording: connections to each nsqd, each with maxInFlight", low=1, high=64)
    max_waiting_bytes: int = opt(
        1 << 30, "recording: pause receiving when more bytes than this are in no batch", low=4096, kind="bytes"
    )
    idle_timeout_ms: int = opt(2000, "recording: AvailableNow ends after this time without a backlog message", low=10)
    connect_timeout_ms: int = opt(30_000, "recording: time AvailableNow waits for an unreachable nsqd", low=10)
    nsqd_http_addresses: tuple[str, ...] = opt(
        (), "recording: host:port for each of nsqdTCPAddresses, to report depth; default: port 4151 for port 4150"
    )
    on_missing_nsqd: Literal["error", "warn"] = opt(
        "error", "recording: if an nsqd is unreachable, AvailableNow fails (error) or reads the other nsqds (warn)"
    )
    include_youzan: bool = opt(False, "add the columns partition, internalId, traceId, ext")
    ordered: bool = opt(False, "read each log in one task, in order; Youzan: record with SUB_ORDERED")
    partitions: tuple[int, ...] = opt((), "Youzan: comma-separated topic partitions to record; default: all")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.recording:
            raise OptionError("recording", "", "is required")
        # Resolve relative paths here, in the driver, because executors have other working directories.
        places = [place.strip() for place in self.recording.split(",")]
        if self.records and len(places) > 1:
            raise OptionError("recording", self.recording, "must be one recording, without a comma, if topic is given")
        checked = [(remote_url if is_remote(one) else local_directory)(one, "recording") for one in places if one]
        object.__setattr__(self, "recording", ",".join(map(str, checked)))
        seconds_of(self.max_trigger_delay)
        if self.records:
            if not self.channel:
                raise OptionError("channel", "", "is required with topic")
            check_topic(self.topic)
            check_channel(self.channel)
            self.check_addresses()
            for address in self.nsqd_http_addresses:
                parse_address(address, default_port=4151, option="nsqdHTTPAddresses")
            if len(self.nsqd_http_addresses) not in (0, len(self.nsqd_tcp_addresses)):
                why = "must have one address for each of nsqdTCPAddresses"
                raise OptionError("nsqdHTTPAddresses", self.nsqd_http_addresses, why)
            for name in ("starting_offsets", "starting_timestamp", "ending_offsets", "ending_timestamp"):
                if getattr(self, name):
                    why = "a query that records starts at its channel's position; omit topic to read a recording"
                    raise OptionError(camel(name), getattr(self, name), why)
        elif self.channel or self.nsqd_tcp_addresses or self.lookupd_http_addresses:
            raise OptionError("topic", "", "is required if a channel or an address is given")

    @property
    def records(self) -> bool:
        """Whether the query records a channel."""
        return bool(self.topic)

    def depth_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of a Reader, and the HTTP addresses of its nsqds."""
        return {**self.client_arguments(), "nsqd_http_addresses": self.nsqd_http_addresses}

    def recorder(self) -> RecorderOptions:
        """Return the options of the recorder."""
        return RecorderOptions(
            topic=self.topic,
            channel=self.channel,
            client=self.client_arguments(),
            max_in_flight=self.max_in_flight,
            connections_per_nsqd=self.connections_per_nsqd,
            ordered=self.ordered and self.dialect == "youzan",
            partitions=self.partitions,
            include_youzan=self.include_youzan,
            max_waiting=self.max_waiting_bytes,
            idle_timeout=self.idle_timeout_ms / 1000,
            connect_timeout=self.connect_timeout_ms / 1000,
            on_missing_nsqd=self.on_missing_nsqd,
            missing_hint=" (with onMissingNsqd=warn, the query continues)",
        )

    @property
    def places(self) -> list[str]:
        """Paths and URLs of the recordings."""
        return self.recording.split(",")


@dataclass(frozen=True, kw_only=True)
class SinkOptions(CommonOptions):
    """Options of the sink, batch and streaming."""

    topic: str = opt("", "topic to publish to, unless the frame has a column 'topic'")
    mpub_size: int = opt(1000, "maximum messages of one MPUB", low=1, high=100_000)
    mpub_max_bytes: int = opt(4 << 20, "maximum bytes of one MPUB (nsqd's --max-body-size)", low=1024, kind="bytes")
    max_message_bytes: int = opt(1 << 20, "maximum bytes of one body (nsqd's --max-msg-size)", low=1, kind="bytes")
    pipeline: int = opt(4, "maximum MPUBs in flight", low=1, high=256)
    on_bad_row: str = opt(
        "error",
        "for rows that nsqd would refuse: error, skip, or topic:NAME to publish a record of each row",
    )
    marker_dir: str = opt("", "directory for progress markers: a retried task skips rows that nsqd has confirmed")
    rows_per_second: float | None = opt(None, "maximum rows per second and task", low=0.001)
    max_retries: int = opt(5, "maximum retries of a failed MPUB or DPUB", low=0, high=1000)
    publish_timeout_ms: int = opt(30_000, "maximum time for nsqd's answer", low=10, high=3_600_000)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.on_bad_row not in ("error", "skip"):
            if not self.bad_row_topic:
                raise OptionError("onBadRow", self.on_bad_row, "must be error, skip or topic:NAME")
            check_topic(self.bad_row_topic)
        if self.marker_dir:
            object.__setattr__(self, "marker_dir", str(local_directory(self.marker_dir, "markerDir")))
        self.check_addresses()

    @property
    def bad_row_topic(self) -> str:
        """The topic for records of bad rows, or ""."""
        return self.on_bad_row.removeprefix("topic:") if self.on_bad_row.startswith("topic:") else ""


def parse(cls: type[_T], raw: Mapping[str, str]) -> _T:
    """Parse Spark's options into *cls*.

    Raises:
        OptionError: an unknown name (the text has the nearest known name), a wrong type, or a value out of range.
    """
    names = {camel(spec.name).lower(): spec.name for spec in dataclasses.fields(cls) if spec.name not in _BUNDLES}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    kinds = {spec.name: spec.metadata["kind"] for spec in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    connection: dict[str, str] = {}
    storage: dict[str, str] = {}
    for key, text in raw.items():
        low = key.lower()
        if low.startswith("option."):
            why = "Spark reads a table without its options: use CREATE TEMPORARY VIEW ... USING nsq OPTIONS (...)"
            raise OptionError("CREATE TABLE", "USING nsq", why)
        if low.startswith("nsq.storage.") and cls is SourceOptions:
            storage[key[12:]] = text
        elif low.startswith("nsq."):
            connection[key[4:]] = text
        elif low in ("topic", "channel") and low in names and not text.strip():
            raise OptionError(low, text, "is empty: give a name, or omit the option")
        elif low in names:
            values[names[low]] = convert(camel(names[low]), text, hints[names[low]], kinds[names[low]])
        elif low not in SPARK_NAMES and not low.startswith("__"):
            raise _unknown(key, [camel(name) for name in names.values()])
    values["nsq"] = connection_arguments(connection)
    if storage:
        values["storage"] = storage
    try:
        return cls(**values)
    except OptionError as error:
        raise OptionError(camel(error.name), error.value, error.why) from None


def _unknown(key: str, known: list[str]) -> OptionError:
    if key.lower() == "path":
        return OptionError("path", "<path>", "format('nsq') takes no path; name the topic with option('topic', ...)")
    folded = {name.lower(): name for name in known}
    near = [TWINS[key.lower()]] if key.lower() in TWINS else difflib.get_close_matches(key.lower(), folded, n=1)
    near = [name.lower() for name in near if name.lower() in folded]
    hint = f"did you mean {folded[near[0]]}?" if near else "see the documentation of format('nsq')"
    return OptionError(key, "<hidden>", f"is not an option of format('nsq'); {hint}")


def convert(name: str, text: str, hint: Any, kind: str = "") -> Any:
    """Convert *text* to the type *hint*.  Raises OptionError."""
    if get_origin(hint) is Literal:
        return check_choice(name, text.strip().lower(), *get_args(hint))
    members = [member for member in get_args(hint) if member is not type(None)]
    if get_origin(hint) is tuple:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return tuple(convert(name, word, members[0]) for word in words)
    if hint not in (int, bool, str, float) and members:
        hint = next((plain for plain in (bool, int, float, str) if plain in members), str)
    if hint is bool:
        if text.strip().lower() not in ("true", "false"):
            raise OptionError(name, text, "must be true or false")
        return text.strip().lower() == "true"
    if hint is int:
        return _whole(name, text, kind)
    if hint is float:
        try:
            return float(text)
        except ValueError:
            raise OptionError(name, text, "must be a number") from None
    return text


def _whole(name: str, text: str, kind: str) -> int:
    text = text.strip()
    if kind == "bytes":
        try:
            return parse_size(text)
        except ValueError:
            raise OptionError(name, text, "must be a number of bytes, such as 65536, 64k, 16m or 1g") from None
    if kind == "time" and (not re.fullmatch(r"\d{1,18}", text, re.ASCII) or len(text) == 8):  # 20261121 is a date
        try:
            ms = -1 if text[:1] in ("-", "+") else int(parse_time(text, SYSTEM_CLOCK.wall()) * 1000)
        except (ValueError, OverflowError):
            ms = -1
        if ms < 0:
            why = "must be milliseconds since 1970, an ISO time such as 2026-11-21T09:30Z, or an age such as 2h"
            raise OptionError(name, text, why)
        return ms
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise OptionError(name, text, "must be a whole number")
    return int(text)


def _connection_names() -> dict[str, tuple[type[Any], str, bool]]:
    """Return a dict from option name to (dataclass, field, whether the value is in milliseconds)."""
    names: dict[str, tuple[type[Any], str, bool]] = {}
    for spec in dataclasses.fields(ConnectionOptions):
        if spec.name in ("tls", "extra_identify"):
            continue
        in_ms = spec.name.endswith(("_timeout", "_interval"))
        names[camel(spec.name) + ("Ms" if in_ms else "")] = (ConnectionOptions, spec.name, in_ms)
    for spec in dataclasses.fields(TLSOptions):
        names[camel("tls_" + spec.name)] = (TLSOptions, spec.name, False)
    return names


#: ``nsq.`` options: name -> (dataclass, field, whether the value is in milliseconds).
CONNECTION_NAMES = _connection_names()


def connection_arguments(raw: Mapping[str, str]) -> dict[str, Any]:
    """Convert the ``nsq.`` options to keyword arguments of Reader and Writer.  Raises OptionError."""
    folded = {name.lower(): name for name in CONNECTION_NAMES}
    result: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    wants_tls: bool | None = None
    for key, text in raw.items():
        low = key.lower()
        if low in ("tls", "tlsv1"):
            wants_tls = convert("nsq.tls", text, bool)
            continue
        if low not in folded:
            error = _unknown(key, [*CONNECTION_NAMES, "tls"])
            raise OptionError("nsq." + key, "<hidden>", error.why.replace("mean ", "mean nsq."))
        cls, name, in_ms = CONNECTION_NAMES[folded[low]]
        value = _field_value("nsq." + folded[low], text, get_type_hints(cls)[name], in_ms)
        (tls if cls is TLSOptions else result)[name] = value
    if wants_tls is False and tls:
        raise OptionError("nsq.tls", "false", "is contradicted by another nsq.tls option")
    try:
        if wants_tls or tls:
            result["tls"] = TLSOptions(**tls)
        ConnectionOptions(**result)  # checks ranges and contradictions when the query is planned
    except OptionError as error:
        name, (_, _, in_ms) = next(item for item in CONNECTION_NAMES.items() if item[1][1] == error.name)
        given = {key.lower(): text for key, text in raw.items()}.get(name.lower(), error.value)
        shown = error.value if _SECRET.search(name) else given
        raise OptionError("nsq." + name, shown, error.why + " (in seconds)" * in_ms) from None
    return result


def _field_value(name: str, text: str, hint: Any, in_ms: bool) -> Any:
    try:
        value = convert(name, text, float if in_ms else hint)
    except OptionError as error:
        if _SECRET.search(name):
            raise OptionError(name, "<hidden>", error.why) from None
        raise
    if in_ms and value != -1:
        return value / 1000
    return value


def redacted(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options for logs, with secrets hidden."""
    return {key: "*********(redacted)" if _SECRET.search(key) else without_password(raw[key]) for key in raw}
