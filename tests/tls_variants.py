"""TLS and compression in every combination, for what must not depend on them."""

from __future__ import annotations

from typing import Any

from gnsq_lite import TLSOptions

WRAPPED = ["tls", "snappy", "deflate", "tls+snappy", "tls+deflate"]
KINDS = ["plain", *WRAPPED]


def options(kind: str, ca_file: str) -> dict[str, Any]:
    """Return the options of a Reader or Writer for one of the KINDS; of a Writer for "coalesced"."""
    layers = kind.split("+")
    coalesce = {"coalesce": True} if "coalesced" in layers else {}
    return coalesce | {
        "tls": TLSOptions(ca_file=ca_file) if "tls" in layers else None,
        "compression": next((layer for layer in layers if layer in ("snappy", "deflate")), None),
    }
