"""Patterns of Go's regexp, for Python's re: what Go does not compile is refused, what it writes otherwise is rewritten.

Enough to say whether a name matches: greediness does not matter for that, and names are of ASCII without newlines
(go doc regexp/syntax).
"""

from __future__ import annotations

import re

_MOST_REPEATS = 1000
_TOKEN = re.compile(
    r"""
    (?P<quoted> \\Q(?P<literal>.*?)(?:\\E|\Z) )
  | (?P<number> \\x(?:\{(?P<long>[0-9A-Fa-f]{1,6})\}|(?P<short>[0-9A-Fa-f]{2}))
              | \\(?P<octal>0[0-7]{0,2}|[1-7][0-7]{1,2}) )
  | (?P<property> \\[pP](?:[A-Z]|\{\^?[A-Za-z_]+\}) )
  | (?P<escape> \\. )
  | (?P<posix> \[:\^?[a-z]+:\] )
  | (?P<flags> \(\?(?P<set>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]) )
  | (?P<name> \(\?P?<(?P<word>\w+)> )
  | (?P<extension> \(\? )
  | (?P<repeat> (?: [*+?] | \{(?P<low>\d+)(?:,(?P<high>\d*))?\} ) \?? )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": r"0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
#: Unicode's properties, as far as ASCII has characters of them; any other has none.
_PROPERTIES = {"L": "alpha", "Lu": "upper", "Ll": "lower", "Latin": "alpha", "N": "digit", "Nd": "digit"}
#: In groups, as Go lets one repeat them.
_ANCHORS = {"^": "(?:^)", "$": r"(?:\Z)", r"\z": r"(?:\Z)", **{word: f"(?:{word})" for word in (r"\A", r"\b", r"\B")}}


class PatternRefused(ValueError):
    """Go does not compile the pattern."""


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return Go's *pattern* for Python.  Raises PatternRefused."""
    try:
        return re.compile(_Translation(pattern).text, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternRefused(f"{pattern!r}: {error}") from None


class _Translation:
    """One pattern, rewritten token by token."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._out: list[str] = []
        self._flags: list[list[str]] = [[]]  # for each open group, those that "(?i)" set to its end
        self._names: set[str] = set()
        self._repeatable = False
        while self._at < len(pattern):
            self._next()
        self._out += [")"] * len(self._flags[0])
        self.text = "".join(self._out)

    def _next(self) -> None:
        token = self._take()
        kind, text = token.lastgroup, token[0]
        if kind == "repeat":
            self._repeat(token)
            return
        if kind == "flags":
            self._set_flags(token["set"], token["end"])
        elif kind == "name":
            if token["word"] in self._names:
                raise PatternRefused(f"{self._pattern!r}: duplicate capture group name")
            self._names.add(token["word"])
            self._open("(")
        elif kind == "extension":
            raise PatternRefused(f"{self._pattern!r}: invalid or unsupported Perl syntax")
        elif kind == "quoted":
            self._out.append(re.escape(token["literal"]))
        elif kind in ("property", "posix"):  # outside of brackets "[:alpha:]" is a set of characters
            self._out.append(f"[{self._members(token)}]" if kind == "property" else text)
        elif kind == "number":
            self._out.append(self._members(token))
        elif kind == "escape":
            self._out.append(_ANCHORS.get(text) or self._escape(text, "dDsSwWaftnrv"))
        else:
            self._other(text)
            return
        self._repeatable = kind not in ("flags", "name")

    def _take(self) -> re.Match[str]:
        token = _TOKEN.match(self._pattern, self._at)
        if token is None:
            raise PatternRefused(f"{self._pattern!r}: at {self._at}")
        self._at = token.end()
        return token

    def _repeat(self, token: re.Match[str]) -> None:
        counts = [int(count) for count in (token["low"], token["high"]) if count]
        if not self._repeatable or any(count > _MOST_REPEATS for count in counts):
            raise PatternRefused(f"{self._pattern!r}: invalid repetition {token[0]}")
        self._out.append(token[0])
        self._repeatable = False

    def _open(self, group: str) -> None:
        self._out.append(group)
        self._flags.append([])

    def _set_flags(self, given: str, end: str) -> None:
        on, _, off = given.replace("U", "").partition("-")
        group = f"(?{on}-{off}:" if off else f"(?{on}:"
        if end == ":":
            self._open(group)
        else:
            self._out.append(group)
            self._flags[-1].append(group)

    def _other(self, char: str) -> None:
        self._repeatable = char not in "(|"
        if char == "(":
            self._open(char)
        elif char == ")":
            self._out.append(")" * (len(self._flags.pop()) + 1))
            if not self._flags:
                raise PatternRefused(f"{self._pattern!r}: unexpected )")
        elif char == "|":
            flags = self._flags[-1]
            self._out.append(")" * len(flags) + "|" + "".join(flags))
        elif char == "[":
            self._set()
        else:
            self._out.append("\\{" if char == "{" else _ANCHORS.get(char, char))

    def _set(self) -> None:
        """Rewrite a set of characters, the bracket of which is taken."""
        negated = self._pattern.startswith("^", self._at)
        self._at += negated
        members: list[str] = []
        while self._at < len(self._pattern):
            if self._pattern[self._at] == "]" and members:
                self._at += 1
                self._out.append(f"[{'^' * negated}{''.join(members)}]")
                return
            token = self._take()
            if token.lastgroup in ("posix", "property", "number"):
                members.append(self._members(token))
            elif token.lastgroup == "escape":
                members.append(self._escape(token[0], "dDsSwWaftnrv"))
            else:
                self._at = token.start() + 1  # what has a meaning elsewhere has none here
                char = token[0][0]
                members.append(f"\\{char}" if char in "[]&~|^" else char)
        raise PatternRefused(f"{self._pattern!r}: missing closing ]")

    def _escape(self, text: str, letters: str) -> str:
        char = text[1]
        if (char.isalnum() and char not in letters) or not char.isascii():
            raise PatternRefused(f"{self._pattern!r}: invalid escape sequence {text}")
        return text

    def _members(self, token: re.Match[str]) -> str:
        """Return what stands for *token* in a set."""
        if token.lastgroup == "number":
            digits = token["long"] or token["short"]
            return f"\\x{code:02x}" if (code := int(digits or token["octal"], 16 if digits else 8)) < 256 else chr(code)
        name = token[0].strip("[:]") if token.lastgroup == "posix" else token[0][2:].strip("{}")
        negated = name.startswith("^") != (token[0][:2] == r"\P")
        name = name.lstrip("^")
        if token.lastgroup == "property":
            name = _PROPERTIES.get(name, "")
        elif name not in _CLASSES:
            raise PatternRefused(f"{self._pattern!r}: invalid character class range {token[0]}")
        return _complement(_CLASSES.get(name, "")) if negated else _CLASSES.get(name, r"\U0010ffff")


def _complement(members: str) -> str:
    """Return the set of ASCII's characters that are not in *members*."""
    inside = re.compile(f"[{members}]") if members else re.compile(r"(?!)")
    return "".join(f"\\x{code:02x}" for code in range(128) if not inside.match(chr(code)))
