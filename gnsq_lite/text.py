"""Shortens and escapes texts from peers and users, for errors, logs and statistics (ERR-2)."""

from __future__ import annotations

import re

#: Maximum length of a text in errors, logs and statistics, in bytes for an error frame, else in characters.
MAX_TEXT = 4096
#: Maximum length of the text of an option's value, and the length to which :func:`brief` cuts a longer text.
_MAX_VALUE, _CUT_VALUE = 200, 150


def printable(text: str) -> str:
    """Cut *text* to MAX_TEXT characters, add a mark if it was cut, and escape control characters.

    Without this function a text from the network could fill a log, or forge log lines.
    """
    return escape(text[:MAX_TEXT]) + mark(len(text), MAX_TEXT)


def cut(text: str, most: int = MAX_TEXT) -> str:
    """Cut *text* to *most* characters, and add a mark if it was cut."""
    return text[:most] + mark(len(text), most)


def mark(size: int, most: int) -> str:
    """Return the mark to append to a text of length *size* that is cut to *most*, or "" if no cut is needed."""
    return f" [cut: {most} of {size}]" if size > most else ""


def escape(text: str) -> str:
    """Escape the control characters in *text*."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def brief(value: object) -> object:
    """Return *value*, or a changed text of *value* if its text is too long or contains a URL with secrets.

    The changed text is cut, and its URLs have no user, password, query and fragment.
    """
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # for example, repr() refuses a very long int
        return f"<{type(value).__name__}>"
    # Change only texts with a URL: "?" in a regular expression is no query.
    safe = re.sub(r"[?#]\S*", "?...", re.sub(r"://\S*@", "://", text)) if "://" in text else text
    safe = cut(safe, _CUT_VALUE) if len(safe) > _MAX_VALUE else safe
    return value if safe == text else safe
