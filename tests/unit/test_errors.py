from __future__ import annotations

import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite import errors
from gnsq_lite.errors import ERROR_CODES, NonFatalError, NsqdError, NSQError, error_for
from gnsq_lite.text import printable

CLASSES = sorted(
    (value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BaseException)),
    key=lambda cls: cls.__name__,
)

#: A value for each parameter of the constructors, by name.
SAMPLES: dict[str, object] = {
    "address": "nsqd7:4150",
    "code": "E_INVALID",
    "attempts": 6,
    "extra": "cli",
    "kind": "topic",
    "limit": 10,
    "missing": "click",
    "name": "an option",
    "part": "the command line",
    "partition": 3,
    "size": 11,
    "status": 404,
    "text": "told so",
    "topic": "clicks",
    "url": "http://nsqd7:4151/stats",
    "value": [1, "two"],
    "why": "because",
}


def sample(cls: type[BaseException]) -> BaseException:
    """An instance made from the parameters of its constructor, by name."""
    if cls.__init__ in (Exception.__init__, OSError.__init__, ImportError.__init__):
        return cls("what went wrong")
    parameters = [name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "args", "kwargs")]
    if not parameters:
        return cls("what went wrong")
    return cls(*(SAMPLES[name] for name in parameters))


@pytest.mark.rule("ERR-3")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_derives_from_nsqerror_and_has_a_docstring(cls: type[BaseException]) -> None:
    assert issubclass(cls, NSQError)
    assert cls.__doc__
    assert str(sample(cls))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_can_be_pickled(cls: type[BaseException]) -> None:
    error = sample(cls)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(error, protocol))
        assert type(back) is cls
        assert (back.args, str(back), vars(back)) == (error.args, str(error), vars(error))


def test_a_protocol_error_shows_its_address() -> None:
    error = errors.ProtocolError("no frame")
    assert str(error) == "no frame"
    error.address = "nsqd7:4150"
    assert str(error) == "nsqd7:4150: no frame"
    assert str(pickle.loads(pickle.dumps(error))) == "nsqd7:4150: no frame"


@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (errors.OptionError, ValueError),
        (errors.InvalidName, ValueError),
        (errors.InvalidBody, ValueError),
        (errors.MessageTooLarge, ValueError),
        (errors.BodyTypeError, TypeError),
        (errors.NSQConnectionError, OSError),
        (errors.MissingExtra, ImportError),
    ],
)
def test_an_error_also_derives_from_the_matching_builtin_class(
    cls: type[BaseException], base: type[BaseException]
) -> None:
    assert issubclass(cls, base)


# -- error frames

#: Every error code of the specification and of nsqd 1.3.0.
_NSQ = """
    E_INVALID E_BAD_PROTOCOL E_BAD_BODY E_BAD_TOPIC E_BAD_CHANNEL E_BAD_MESSAGE E_PUB_FAILED E_MPUB_FAILED E_DPUB_FAILED
    E_SUB_FAILED E_IDENTIFY_FAILED E_AUTH_FIRST E_AUTH_FAILED E_AUTH_ERROR E_AUTH_DISABLED E_UNAUTHORIZED E_FIN_FAILED
    E_REQ_FAILED E_TOUCH_FAILED
"""
_YOUZAN = """
    E_FAILED_ON_NOT_LEADER E_FAILED_ON_NOT_WRITABLE E_TOPIC_NOT_EXIST E_SUB_ORDER_IS_MUST E_EXT_NOT_SUPPORT
"""
#: Codes of Youzan's nsqd that share the class of another code.
SHARED = {
    "E_SUB_EXTEND_NEED": errors.SubFailedError,
    "E_SUB_EXTEND_FORBIDDON": errors.SubFailedError,
    "E_SUB_CHANNEL_NOT_REGISTERED": errors.SubFailedError,
    "E_INVALID_JSON_HEADER": errors.ExtNotSupportedError,
    "INVALID_TRACE_ID": errors.ExtNotSupportedError,
    "E_PUB_TOO_MUCH_WAITING": errors.PubFailedError,
    "E_CREATE_TOPIC_FAILED": errors.NonFatalError,
}
NSQ_CODES, YOUZAN_CODES = _NSQ.split(), _YOUZAN.split()


@pytest.mark.rule("ERR-3")
@pytest.mark.parametrize("code", NSQ_CODES + YOUZAN_CODES)
def test_each_code_has_its_own_class(code: str) -> None:
    error = error_for(f"{code} some text".encode(), "nsqd7:4150")
    assert type(error) is ERROR_CODES[code]
    assert type(error) is not NsqdError
    assert [known for known, cls in ERROR_CODES.items() if cls is type(error) and known not in SHARED] == [code]
    assert (error.code, error.text, error.address) == (code, "some text", "nsqd7:4150")
    assert str(error).startswith(f"nsqd7:4150: {code} some text")
    assert code in (type(error).__doc__ or "")


@pytest.mark.rule("ERR-3")
def test_the_other_codes_of_youzan_share_a_class() -> None:
    assert {code: ERROR_CODES[code] for code in SHARED} == SHARED
    assert sorted(ERROR_CODES) == sorted([*NSQ_CODES, *YOUZAN_CODES, *SHARED])
    assert type(error_for(b"E_BAD_PARTITION x")) is NsqdError


@pytest.mark.rule("ERR-1")
@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("code", NSQ_CODES)
def test_only_errors_for_late_answers_leave_the_connection_open(code: str) -> None:
    error = error_for(code.encode())
    late = code in ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")
    assert error.closes_connection is not late
    assert isinstance(error, NonFatalError) is late


@pytest.mark.rule("YZ-7")
def test_the_error_of_an_ordered_topic_says_what_to_change() -> None:
    assert "ordered=True" in str(error_for(b"E_SUB_ORDER_IS_MUST this topic is configured only allow ordered sub"))


@pytest.mark.rule("YZ-15")
@pytest.mark.parametrize("code", [b"E_SUB_EXTEND_NEED", b"E_SUB_EXTEND_FORBIDDON"])
def test_the_errors_of_a_topic_with_or_without_headers_say_what_to_change(code: bytes) -> None:
    assert "extend_support" in str(error_for(code + b" this topic is what you did not say"))


@pytest.mark.rule("ERR-3")
@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", "", ""),
        (b" ", "", ""),
        (b"E_NEW_ONE told so", "E_NEW_ONE", "told so"),
        (b"E_TOPIC_NOT_EXIST ", "E_TOPIC_NOT_EXIST", ""),  # Youzan's nsqd always sends the blank
        (b"E_INVALID", "E_INVALID", ""),
        (b"E_INVALIDATED x", "E_INVALIDATED", "x"),
        (b"E_INVALID\xff\xfe bytes", "E_INVALID\\xff\\xfe", "bytes"),
        (b"E_INVALID line\none\r\x1b[2J\x00", "E_INVALID", "line\\none\\r\\x1b[2J\\x00"),
        ("E_INVALID caf\u00e9 \u202e".encode(), "E_INVALID", "caf\u00e9 \\u202e"),
    ],
)
def test_any_error_frame_gives_an_error_that_can_be_logged(body: bytes, code: str, text: str) -> None:
    error = error_for(body)
    assert (error.code, error.text) == (code, text)
    assert str(error).isprintable()


@pytest.mark.rule("ERR-2")
def test_a_text_is_cut_to_4_kib_with_a_mark_at_its_end() -> None:
    whole = b"E_INVALID " + b"x" * 4086
    assert error_for(whole).text == "x" * 4086
    assert error_for(whole + b"yy").text == "x" * 4086 + " [cut: 4096 of 4098]"
    assert len(str(error_for(b"E_INVALID " + b"\0" * 60_000_000))) < 20_000
    assert printable("\n" * 4096) == "\\n" * 4096
    assert printable("x" * 5000) == "x" * 4096 + " [cut: 4096 of 5000]"


@pytest.mark.rule("ERR-3")
@given(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)))
def test_any_bytes_give_an_nsqd_error(body: bytes) -> None:
    error = error_for(body, "nsqd7:4150")
    assert isinstance(error, NsqdError)
    assert str(error).isprintable()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "value",
    [
        "http://lookup:4161/?token=s3cret",
        "http://lookup:4161/#s3cret",
        "http://user:s3cret@lookup:4161",
        "http://user:pass/s3cret@lookup:4161",
        ["http://a:4161", "https://user:s3cret@b:4161/x?y"],
        {"url": "http://lookup:4161/?token=s3cret"},
    ],
)
def test_an_option_error_shows_neither_a_urls_user_nor_its_query(value: object) -> None:
    error = errors.OptionError("x", value, "is wrong")
    assert "s3cret" not in f"{error} {error!r} {error.args} {error.value}"


def test_an_option_error_cuts_only_long_values() -> None:
    for value in ("x" * 10_000, b"x" * 10_000, ["x"] * 10_000, 10**10_000, {"a": {"b": "x" * 10_000}}):
        error = errors.OptionError("x", value, "is wrong")
        assert len(f"{error} {error!r}") < 600
        assert pickle.loads(pickle.dumps(error)).args == error.args
    assert len(str(errors.InvalidName("topic", "x" * 10_000, "is too long"))) < 300
    for kept in ("^a?$", 5, None, ["a"], "http://a:1/x"):
        assert errors.OptionError("x", kept, "is wrong").value is kept
