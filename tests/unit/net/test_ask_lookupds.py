"""Which nsqlookupds are asked, and which owe an answer."""

from __future__ import annotations
