"""The keywords in the type hints are the keywords that the classes accept."""

from __future__ import annotations

import typing

from gnsq_lite import Reader, Writer, arguments, errors
from gnsq_lite.worker import Handler
from gnsq_lite.worker.specs import OWN
from tests import keyword_types


def test_the_types_of_keywords_follow_the_declared_options() -> None:
    assert keyword_types.split()[1] == keyword_types.written(), "run python -m tests.keyword_types"


def names_of(declared: type) -> set[str]:
    return set(typing.get_type_hints(declared, {"Any": typing.Any}))


def refused(call: typing.Any, names: set[str]) -> set[str]:
    found = set()
    for name in names:
        try:
            call(**{name: None})
        except errors.OptionError as error:
            if "no such option" in error.why:
                found.add(name)
        except Exception:  # the name is known, and the value None is invalid
            continue
    return found


def test_a_reader_and_a_writer_accept_exactly_their_keywords() -> None:
    reader, writer = names_of(arguments.ReaderArguments), names_of(arguments.WriterArguments)
    given = lambda **options: Reader("t", "ch", print, **options)  # noqa: E731
    assert refused(given, reader | {"batch_size", "batch_wait"}) == set()
    assert refused(Writer, writer) == set()
    assert refused(given, writer - reader) == writer - reader
    assert len(reader & writer) > 25


def test_a_handler_accepts_the_keywords_of_a_reader_and_its_own() -> None:
    reader, handler = (typing.get_type_hints(kind) for kind in (arguments.ReaderArguments, arguments.HandlerArguments))
    assert reader.pop("on_give_up") | str == handler.pop("on_give_up")
    own = set(OWN) - {"decode"}  # decode= is typed by hand, because it decides the handler's arguments
    assert {name: handler.pop(name) for name in own}.keys() == own
    assert reader == handler
    assert Handler("a", "b", print, {"concurrency": 2}).merged({})["max_in_flight"] == 2
