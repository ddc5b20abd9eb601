"""Patterns of Go's: each expectation is what Go's regexp said of it."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.broker.re2 import PatternRefused, compile_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a)\1", "(?=a)a", "(?!a)", "(?<=a)b", "(?>a)", "(?#x)a", "(?P=n)", "(?x) a"),
        *("a*+", "a**", "a{1001}", "a{2}{3}", "a{2,1}", "*a"),
        *("(a", "a)", "[a-", "[z-a]", r"[a-\d]", "[a", r"[a\]", "[[:nowhere:]]"),
        *("\\", r"\y", r"\Z", r"\8", r"\C", r"[\b]", "(?", "(?i", "(?P<>b)", "(?P<n>a)(?P<n>b)"),
    ],
)
def test_what_go_does_not_compile_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused, match=re.escape(repr(pattern))):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", "x"], []),
        ("^te.t$", ["test", "text"], ["test1", "a-test"]),
        ("(?i)ABC", ["abc", "xAbC"], ["ab"]),
        ("a(?i)b|c", ["aB", "C"], ["Ab"]),  # the flag holds behind the bar too
        ("(?i:a(?-i)b)c", ["Abc"], ["ABc", "AbC"]),
        ("(?U)a+?b", ["aab"], ["b"]),
        ("(?<n>a)(?P<1m>b)", ["ab"], ["ba"]),
        ("^a{,3}$", ["a{,3}"], ["aaa"]),  # no repetition in Go
        ("^(a{2}){2}$", ["aaaa"], ["aa"]),
        ("^*a", ["a", "ba"], ["b"]),
        ("^[[:alpha:]_]+$", ["abC_"], ["a1"]),
        ("^[[:^alpha:]]$", ["1"], ["a"]),
        ("^[:alpha:]$", ["a", ":"], ["b"]),
        (r"^\pL\p{Nd}\P{Lu}$", ["a1b", "A1."], ["a1B", "1ab"]),
        (r"\p{Greek}", [], ["a"]),
        (r"^\Qa.b\E.$", ["a.bc"], ["axbc"]),
        (r"\x41\x{62}\103\z", ["AbC"], ["AbCd"]),
        ("^[]a]+$", ["]a"], ["b"]),
        ("^[^]a]$", ["b"], ["]", "a"]),
        ("^[a&&b]+$", ["a&b"], ["c"]),
        (r"^[\w.-]+$", ["a.b-c_9"], ["a#b"]),
    ],
)
def test_a_name_matches_as_go_says(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in [*yes, *no] if compiled.search(name)] == yes


@given(st.text(st.sampled_from("abC.^$()|[]*+?{}2,\\dwbzQE(?i:)-&P<n>x41pL"), max_size=12))
def test_any_text_is_compiled_or_refused_and_nothing_else(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile_pattern(pattern)
        except PatternRefused:
            pass
