"""Directories as Spark's users name them: a path, or a URL.

A URL of a scheme nobody here can write to must not become a local directory of that name: what is stored there would be
finished at nsqd and found by no one.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gnsq_lite.errors import OptionError

#: Object stores; Hadoop's names of them too.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_USER = re.compile(r"//[^/@\s:]*:[^/@\s]*@")


def is_url(text: str) -> bool:
    """Whether *text* is a URL such as ``s3a://bucket/x`` or ``file:/x``; a relative path may be given as ``./x:/y``."""
    return _URL.match(text) is not None


def without_password(text: str) -> str:
    """Return *text* as it may be logged: a URL in it may have a user and a password, such as a proxy's."""
    return _USER.sub("//*********(redacted)@", text)


def is_remote(text: str) -> bool:
    """Whether *text* is the URL of an object store."""
    return is_url(text) and urlsplit(text).scheme.lower() in OBJECT_STORES


def remote_url(text: str, option: str) -> str:
    """Return the URL of an object store as it is used.  Raises OptionError."""
    parts = urlsplit(text)
    if not parts.netloc or parts.query or parts.fragment:
        raise OptionError(option, "<hidden>", f"must be {parts.scheme}://BUCKET/PATH, without ? or #")
    if parts.password is not None:  # every error and every log names the URL
        raise OptionError(option, "<hidden>", "must name no password: a store's credentials are nsq.storage.NAME")
    return text.rstrip("/")


def local_directory(text: str, option: str) -> Path:
    """Return the absolute path of *text*, a path or a ``file:`` URL.

    Raises OptionError, of *option*, for any other URL.
    """
    if not is_url(text):
        return Path(text).absolute()
    parts = urlsplit(text)
    if parts.scheme.lower() != "file":
        why = f"{parts.scheme}: is not supported here: give a path, or a file: URL, of storage that is mounted"
        if option == "recording":
            why += "; or an object store: " + ", ".join(sorted(OBJECT_STORES))
        raise OptionError(option, text, why)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise OptionError(option, text, "must be file:///PATH: a file of this machine, without a host, ? or #")
    return Path(unquote(parts.path)).absolute()
