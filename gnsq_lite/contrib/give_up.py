"""Ready-made ``on_give_up`` callbacks (MSG-4); they live in :mod:`gnsq_lite.giveup`, where a Worker finds them too."""

from __future__ import annotations

from gnsq_lite.giveup import GivenUp, OnGiveUp, by_name, check_name, read, to_directory, to_log, to_topic

__all__ = ["GivenUp", "OnGiveUp", "by_name", "check_name", "read", "to_directory", "to_log", "to_topic"]
