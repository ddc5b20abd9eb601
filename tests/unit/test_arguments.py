"""The keywords that type checkers see are those that run: the same names, and the same types."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import Reader, Writer, arguments, keywords, options
from gnsq_lite.options import ConnectionOptions, HandlerOptions, LookupOptions, ReconnectOptions, RetryOptions
from gnsq_lite.options import WriterOptions as OfWriter
from gnsq_lite.options import WriterReconnectOptions as OfReconnect
from gnsq_lite.worker import Handler

#: ``tls=True`` and ``False`` are words for an option's other values.
WIDER = {"tls": bool}


def types_of_fields(*kinds: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in kinds:
        found |= typing.get_type_hints(kind, vars(options))
    return {name: found[name] | WIDER[name] if name in WIDER else found[name] for name in found}


def types_of_parameters(function: Callable[..., Any]) -> dict[str, Any]:
    module: Any = inspect.getmodule(function)
    names = {**vars(typing), **vars(arguments), **vars(keywords), **vars(module)}
    names |= {"Unpack": list, "PublishReceipt": bytes}
    hints = typing.get_type_hints(function, names)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: hints[each.name] for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("declared", "kinds"),
    [
        (keywords.ConnectionKeywords, [ConnectionOptions]),
        (keywords.LookupKeywords, [LookupOptions]),
        (
            keywords.ReaderKeywords,
            [ConnectionOptions, HandlerOptions, LookupOptions, RetryOptions, ReconnectOptions],
        ),
        (keywords.WriterKeywords, [ConnectionOptions, LookupOptions, OfWriter, OfReconnect]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_keyword_has_the_name_and_the_type_of_its_option(declared: type, kinds: list[type]) -> None:
    assert typing.get_type_hints(declared) == types_of_fields(*kinds)


@pytest.mark.parametrize(
    ("declared", "beside", "function", "their_own"),
    [
        (arguments.ReaderArguments, keywords.ReaderKeywords, Reader.__init__, {"batch_size", "batch_wait"}),
        (arguments.WriterArguments, keywords.WriterKeywords, Writer.__init__, set()),
    ],
    ids=["Reader", "Writer"],
)
def test_an_argument_has_the_name_and_the_type_of_its_parameter(
    declared: type, beside: type | None, function: Callable[..., Any], their_own: set[str]
) -> None:
    parameters = types_of_parameters(function)
    assert their_own <= set(parameters)
    known = set() if beside is None else set(typing.get_type_hints(beside))
    found = {name: kind for name, kind in typing.get_type_hints(declared).items() if name not in known | their_own}
    assert found == {name: kind for name, kind in parameters.items() if name not in their_own}


def test_a_handlers_arguments_are_a_readers_with_words_for_give_up() -> None:
    reader, handler = (typing.get_type_hints(kind) for kind in (arguments.ReaderArguments, arguments.HandlerArguments))
    assert reader.pop("on_give_up") | str == handler.pop("on_give_up")
    assert reader == handler


def test_every_argument_can_be_given_to_a_reader() -> None:
    names = set(typing.get_type_hints(arguments.HandlerArguments)) | {"batch_size", "batch_wait"}
    taken = set(inspect.signature(Reader.__init__).parameters) | set(typing.get_type_hints(keywords.ReaderKeywords))
    assert names == taken - {"self", "topic", "channel", "handler", "options"}
    assert Handler("a", "b", print, {"concurrency": 2}).merged({})["max_in_flight"] == 2
