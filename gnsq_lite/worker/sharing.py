"""One number of places for the handlers of a Worker, shared by weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnsq_lite.consume.shared_concurrency import SharedConcurrency
from gnsq_lite.errors import OptionError
from gnsq_lite.net.waiting import run_in_loop
from gnsq_lite.option_fields import check_number
from gnsq_lite.reader import Reader
from gnsq_lite.worker.specs import Handler


@dataclass(frozen=True)
class Sharing:
    """How many handlers run at once in this process, and the weight of each that is not 1."""

    total: int
    weights: Mapping[str, float]

    def check(self, handlers: Sequence[Handler], options: Sequence[Mapping[str, Any]]) -> None:
        """Raise OptionError for fewer places than handlers, a weight of none, and a pool that waits for no place."""
        if self.total < len(handlers):
            raise OptionError("total", self.total, f"is less than one place for each of {len(handlers)} handlers")
        for name in self.weights:
            if name not in {_name(handler) for handler in handlers}:
                raise OptionError("weights", name, "is no handler's topic/channel")
        for each in options:
            if each.get("handler_pool") == "inline":
                raise OptionError("handler_pool", "inline", "cannot share places: its handler runs where it is read")

    def options(self, merged: Mapping[str, Any]) -> dict[str, Any]:
        """Return a Reader's options: as many of its handlers as it says, or as there are places, and messages too."""
        most = merged.get("concurrency") or self.total
        return {"max_in_flight": most, **merged, "concurrency": min(most, self.total)}

    def begin(self, handlers: Sequence[Handler], readers: Sequence[Reader]) -> None:
        """Share out, for as long as the Readers run."""
        members = []
        for handler, reader in zip(handlers, readers, strict=True):
            core = reader._started()
            members.append((core, self.weights.get(_name(handler), 1.0), core.settings.concurrency or self.total))
        shared = SharedConcurrency(self.total, members)
        run_in_loop(members[0][0].loop, shared.start)


def make(total: int, weights: Mapping[str, float] | None) -> Sharing:
    """Return it, checked.  Raises OptionError."""
    check_number("total", total, 1, 10_000, whole=True)
    for value in (weights or {}).values():
        check_number("weights", value, 0.001, 1000)
    return Sharing(total, dict(weights or {}))


def _name(handler: Handler) -> str:
    return f"{handler.topic}/{handler.channel}"
