"""How text of peers and users is shown: cut, escaped, and without credentials."""

from __future__ import annotations

import re

#: Bytes of a server's text, or characters of any text, that errors, log lines and statistics keep (ERR-2).
MAX_TEXT = 4096
#: A value with a longer text is cut, to these many characters: with the mark it is shorter, and not cut again.
_MAX_VALUE, _CUT_VALUE = 200, 150


def printable(text: str) -> str:
    """Return the first MAX_TEXT characters of *text*, marked if cut, with control characters escaped.

    Text from the network can then neither fill a log nor forge lines in it.
    """
    return escape(text[:MAX_TEXT]) + mark(len(text), MAX_TEXT)


def cut(text: str, most: int = MAX_TEXT) -> str:
    """Return the first *most* characters of *text*, marked if cut."""
    return text[:most] + mark(len(text), most)


def mark(size: int, most: int) -> str:
    """Return what follows *most* of *size* bytes or characters: nothing where that is all."""
    return f" [cut: {most} of {size}]" if size > most else ""


def escape(text: str) -> str:
    """Return *text* with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def brief(value: object) -> object:
    """Return *value*, or text to show in its place where it is long or holds a URL's user, password or query."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:  # an int that is too long, for example
        return f"<{type(value).__name__}>"
    # Only then, so that "?" in a regular expression is shown.
    safe = re.sub(r"[?#]\S*", "?...", re.sub(r"://\S*@", "://", text)) if "://" in text else text
    safe = cut(safe, _CUT_VALUE) if len(safe) > _MAX_VALUE else safe
    return value if safe == text else safe
