"""Parses the location of a recording, which is a path or a URL.

A URL with an unsupported scheme must not become a local directory of the same name.  The recorder would finish messages
at nsqd, but no reader would find their rows.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gnsq_lite.errors import OptionError

#: URL schemes of object stores, including Hadoop's names.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_USER = re.compile(r"//[^/@\s:]*:[^/@\s]*@")


def is_url(text: str) -> bool:
    """Return whether *text* is a URL such as ``s3a://bucket/x`` or ``file:/x``.  The path ``./x:/y`` is no URL."""
    return _URL.match(text) is not None


def without_password(text: str) -> str:
    """Return *text* without the users and passwords of its URLs, so that logs and errors may show it."""
    return _USER.sub("//*********(redacted)@", text)


def is_remote(text: str) -> bool:
    """Return whether *text* is the URL of an object store."""
    return is_url(text) and urlsplit(text).scheme.lower() in OBJECT_STORES


def remote_url(text: str, option: str) -> str:
    """Check and normalize the URL of an object store.  Raises OptionError."""
    parts = urlsplit(text)
    if not parts.netloc or parts.query or parts.fragment:
        raise OptionError(option, "<hidden>", f"must be {parts.scheme}://BUCKET/PATH, without ? or #")
    if parts.password is not None:  # errors and logs show the URL
        raise OptionError(option, "<hidden>", "must not have a password: pass credentials as nsq.storage.NAME")
    return text.rstrip("/")


def local_directory(text: str, option: str) -> Path:
    """Return the absolute path of *text*, a path or a ``file:`` URL.

    Raises OptionError for any other URL.  The error names the option *option*.
    """
    if not is_url(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    if parts.scheme.lower() != "file":
        why = f"{parts.scheme}: is not supported here: give a path, or a file: URL, of mounted storage"
        if option == "recording":
            why += "; or an object store: " + ", ".join(sorted(OBJECT_STORES))
        raise OptionError(option, text, why)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise OptionError(option, text, "must be file:///PATH: a file of this machine, without a host, ? or #")
    return Path(unquote(parts.path)).absolute()
