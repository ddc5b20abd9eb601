"""Options of Readers and Writers for the features of Youzan's NSQ."""

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
    """Filter by headers for the messages of an ext topic (YZ-16).

    The server finishes messages that do not match the filter, so no consumer of the channel receives them.
    """

    kind: Literal["exact", "regex", "glob", "list"] = documented("exact", "how the header's value is compared")
    key: str | None = documented(None, "the header; not for 'list'")
    value: str | None = documented(None, "the text to compare the header's value with; not for 'list'")
    pairs: Sequence[tuple[str, str]] = documented((), "for 'list': headers and their exact values")
    match: Literal["any", "all"] = documented("any", "for 'list': whether one pair is enough")
    inverse: bool = documented(False, "receive the messages that do not match, also messages without headers")

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, *_FILTERS)
        check_choice("match", self.match, "any", "all")
        # The server reports no error for an invalid filter, but sends every message.
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
        """Return IDENTIFY's ``ext_filter``.  nsqd/ext_filter.go:36"""
        filter_: dict[str, Any] = {"type": _FILTERS[self.kind], "inverse": self.inverse}
        if self.kind != "list":
            return {**filter_, "filter_ext_key": self.key, "filter_data": self.value}
        listed = [{"filter_ext_key": key, "filter_data": value} for key, value in self.pairs]
        return {**filter_, "filter_ext_key": self.match, "filter_data_list": listed}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


@dataclass(frozen=True, kw_only=True)
class YouzanOptions:
    """Options of a Reader or Writer for Youzan's NSQ.  The constructor checks them, and raises OptionError."""

    partitions: Collection[int] | None = documented(None, "partitions to read; None: all (YZ-3)")
    ordered: bool | None = documented(False, "consume in order; None: as in the topic's metainfo (YZ-6)")
    start_offset: StartOffset | None = documented(None, "first message for a channel without consumers (YZ-17)")
    positions: bool = documented(False, "messages carry queue_offset and raw_size (SUB_ADVANCED)")
    desired_tag: str | None = documented(None, "receive the messages with this tag only (YZ-16)")
    ext_filter: ExtFilter | None = documented(None, "receive matching messages only (YZ-16)")
    extend_support: bool | None = documented(None, "whether the topic has headers; None: as in its metainfo (YZ-15)")
    key_mapping: KeyMapping = documented("go", "'go' (murmur3) or 'java' (String.hashCode): key to partition (YZ-5)")
    decompress: bool = documented(True, "decompress the bodies that youzan/go-nsq compressed")
    max_decompressed_size: int = size(
        16 * 1024 * 1024, 1, 2**31 - 1, "a longer decompressed body fails its message with CompressedBodyError"
    )
    trace: bool = documented(False, "publish with a trace id and return receipts (YZ-9)")

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
