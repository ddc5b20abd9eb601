"""Options of Readers and Writers of Youzan's NSQ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_choice, check_ranges, documented, size
from gnsq_lite.youzan.commands import StartOffset, check_partition
from gnsq_lite.youzan.headers import check_tag
from gnsq_lite.youzan.partitions import KeyMapping

#: Number of each kind of filter in IDENTIFY.
_FILTERS = {"exact": 1, "regex": 2, "glob": 3, "list": 4}


@dataclass(frozen=True, kw_only=True)
class ExtFilter:
    """Selects the messages of an ext topic that a Reader receives, by their headers (YZ-16).

    The server finishes all other messages, so no consumer of the channel receives them.
    """

    kind: Literal["exact", "regex", "glob", "list"] = documented("exact", "how values are compared")
    key: str | None = documented(None, "name of the header; None for 'list'")
    value: str | None = documented(None, "text to compare the value of the header with; None for 'list'")
    pairs: Sequence[tuple[str, str]] = documented((), "only for 'list': names of headers and their exact values")
    match: Literal["any", "all"] = documented("any", "only for 'list': whether any pair, or all pairs, must match")
    inverse: bool = documented(False, "receive only messages that do not match, and messages without headers")

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, *_FILTERS)
        check_choice("match", self.match, "any", "all")
        # If a filter is invalid, the server reports no error, but sends every message.
        if self.kind == "list":
            self._check_list()
        elif not _is_text(self.key) or not _is_text(self.value) or self.pairs:
            raise OptionError("key", self.key, f"a filter of kind {self.kind!r} has a key and a value, and no pairs")

    def _check_list(self) -> None:
        if self.key is not None or self.value is not None or not self.pairs:
            raise OptionError("pairs", self.pairs, "a filter of kind 'list' has pairs, and no key or value")
        for pair in self.pairs:
            if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_text, pair)):
                raise OptionError("pairs", pair, "must be pairs of a header and its value")

    def identify(self) -> dict[str, Any]:
        """Return the value of ``ext_filter`` in IDENTIFY.  nsqd/ext_filter.go:36"""
        filter_: dict[str, Any] = {"type": _FILTERS[self.kind], "inverse": self.inverse}
        if self.kind != "list":
            return {**filter_, "filter_ext_key": self.key, "filter_data": self.value}
        listed = [{"filter_ext_key": key, "filter_data": value} for key, value in self.pairs]
        return {**filter_, "filter_ext_key": self.match, "filter_data_list": listed}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


@dataclass(frozen=True, kw_only=True)
class YouzanOptions:
    """Options of a Reader or Writer of Youzan's NSQ.  Raises OptionError for an invalid option."""

    partitions: Collection[int] | None = documented(None, "partitions to read; None: all partitions (YZ-3)")
    ordered: bool | None = documented(False, "consume in order; None: only if the topic is ordered (YZ-6)")
    start_offset: StartOffset | None = documented(None, "position at which a channel without consumers starts (YZ-17)")
    positions: bool = documented(False, "messages have queue_offset and raw_size (SUB_ADVANCED)")
    desired_tag: str | None = documented(None, "receive only messages with this tag (YZ-16)")
    ext_filter: ExtFilter | None = documented(None, "receive only messages that match this filter (YZ-16)")
    extend_support: bool | None = documented(None, "whether the topic is an ext topic; None: ask nsqlookupd (YZ-15)")
    key_mapping: KeyMapping = documented("go", "hash of keys: 'go' (murmur3) or 'java' (String.hashCode) (YZ-5)")
    decompress: bool = documented(True, "decompress the bodies that youzan/go-nsq compressed")
    max_decompressed_size: int = size(
        16 * 1024 * 1024, 1, 2**31 - 1, "a message with a larger decompressed body fails with CompressedBodyError"
    )
    trace: bool = documented(False, "each publish has a trace id and returns a receipt (YZ-9)")

    def __post_init__(self) -> None:
        if self.partitions is not None:
            if isinstance(self.partitions, (str, bytes)) or not self.partitions:
                raise OptionError("partitions", self.partitions, "must be None or a list of partitions")
            for partition in self.partitions:
                check_partition(partition)
        if not (self.ordered is None or isinstance(self.ordered, bool)):
            raise OptionError("ordered", self.ordered, "must be True, False or None")
        if self.start_offset is not None and not isinstance(self.start_offset, StartOffset):
            raise OptionError("start_offset", self.start_offset, "must be a StartOffset")
        if self.start_offset is not None and self.ordered:
            raise OptionError("start_offset", self.start_offset, "cannot be combined with ordered")
        if self.desired_tag is not None:
            check_tag(self.desired_tag, "desired_tag")
        if self.ext_filter is not None and not isinstance(self.ext_filter, ExtFilter):
            raise OptionError("ext_filter", self.ext_filter, "must be an ExtFilter")
        check_ranges(self)
        check_choice("key_mapping", self.key_mapping, "go", "java")
