"""A Worker's total concurrency, shared among its handlers by weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.net.waiting import run_in_loop
from gnsq_lite.option_fields import check_number
from gnsq_lite.reader import Reader
from gnsq_lite.worker.shared_concurrency import SharedConcurrency
from gnsq_lite.worker.specs import Handler


@dataclass(frozen=True)
class Sharing:
    """The total concurrency of this process, and the weights that are not 1."""

    total: int
    weights: Mapping[str, float]

    def check(self, handlers: Sequence[Handler], options: Sequence[Mapping[str, Any]]) -> None:
        """Raise OptionError for fewer places than handlers, weights of unknown handlers, and ``inline`` handlers."""
        if self.total < len(handlers):
            raise OptionError("total", self.total, f"is less than one place for each of {len(handlers)} handlers")
        for name in self.weights:
            if name not in {_name(handler) for handler in handlers}:
                raise OptionError("weights", name, "no handler has this topic/channel")
        for each in options:
            if each.get("handler_pool") == "inline":
                raise OptionError("handler_pool", "inline", "cannot share places: use 'greenlet' or 'thread'")

    def options(self, merged: Mapping[str, Any]) -> dict[str, Any]:
        """Return a Reader's options with ``concurrency`` and ``max_in_flight`` filled in."""
        most = merged.get("concurrency") or self.total
        return {"max_in_flight": most, **merged, "concurrency": min(most, self.total)}

    def begin(self, handlers: Sequence[Handler], readers: Sequence[Reader]) -> None:
        """Share the places out while the Readers run."""
        members = []
        for handler, reader in zip(handlers, readers, strict=True):
            core = reader._started()
            members.append((core, self.weights.get(_name(handler), 1.0), core.settings.concurrency or self.total))
        shared = SharedConcurrency(self.total, members)
        run_in_loop(members[0][0].loop, shared.start)


def make(total: int, weights: Mapping[str, float] | None) -> Sharing:
    """Return a checked Sharing.  Raises OptionError."""
    check_number("total", total, 1, 10_000, whole=True)
    for value in (weights or {}).values():
        check_number("weights", value, 0.001, 1000)
    return Sharing(total, dict(weights or {}))


def _name(handler: Handler) -> str:
    return f"{handler.topic}/{handler.channel}"
