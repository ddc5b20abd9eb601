"""The public names and their signatures.  A change here is a change for users and belongs in CHANGELOG.rst."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import gnsq_lite
from gnsq_lite import Message, Reader, Writer, errors
from gnsq_lite.consume.settings import ReaderOptions
from gnsq_lite.publish.settings import WriterOptions

PACKAGE = Path(gnsq_lite.__file__).parent

EXPORTED = {
    "BackoffOptions",
    "GiveUp",
    "Message",
    "Publication",
    "PublishCall",
    "PublishMiddleware",
    "PublishReceipt",
    "Reader",
    "Requeue",
    "TLSOptions",
    "TimeLimitExceeded",
    "Worker",
    "Writer",
    "__version__",
    "current_message",
    "errors",
}

MEMBERS = {
    Reader: {
        "start": "(self, block=True)",
        "close": "(self, timeout=30.0, *, wait=True)",
        "join": "(self, timeout=None)",
        "pause": "(self)",
        "resume": "(self)",
        "set_max_in_flight": "(self, count)",
        "is_starved": "(self)",
        "stats": "(self, timeout=None)",
        "running": "(self, at_least=0.0)",
    },
    Writer: {
        "publish": "(self, topic, body, *, defer=0.0, timeout=None, key=None, partition=None, trace_id=None, "
        "headers=None)",
        "multipublish": "(self, topic, bodies, *, timeout=None, key=None, partition=None, headers=None, "
        "trace_ids=None)",
        "flush": "(self, timeout=None)",
        "close": "(self, timeout=30.0, *, wait=True)",
        "stats": "(self, timeout=None)",
    },
    Message: {
        "finish": "(self)",
        "requeue": "(self, delay=None, backoff=True)",
        "touch": "(self)",
        "enable_async": "(self)",
    },
}

READER_ARGUMENTS = [
    *("topic", "channel", "handler", "nsqd_tcp_addresses", "lookupd_http_addresses", "max_in_flight", "concurrency"),
    *("handler_pool", "backoff", "on_give_up", "batch_size", "batch_wait", "dialect", "partitions", "ordered"),
]
WRITER_ARGUMENTS = ["nsqd_tcp_addresses", "lookupd_http_addresses", "dialect", "trace"]
MESSAGE_ATTRIBUTES = [
    *("body", "id", "timestamp", "timestamp_ns", "attempts", "topic", "channel", "nsqd_address", "deadline"),
    *("timed_out", "has_responded", "partition", "internal_id", "trace_id"),
]

#: Modules that a user may import besides the package itself.  All other modules may change.
MODULES = {
    "gnsq_lite.errors": {"NSQError", "NsqdError", "OptionError", "PublishError", "OutcomeUnknown", "NotSent"},
    "gnsq_lite.http": {"NsqdClient", "LookupdClient"},
    "gnsq_lite.broker": {"Broker"},
    "gnsq_lite.worker": {"Middleware"},
    "gnsq_lite.testing": {"deliver", "make_message"},
    "gnsq_lite.youzan.dialect": {"YouzanDialect"},
    "gnsq_lite.youzan.tail": {"to_tail"},
    "gnsq_lite.contrib.give_up": {"to_log", "to_directory", "to_topic", "read"},
    "gnsq_lite.contrib.cron": {"Cron"},
    "gnsq_lite.contrib.prometheus": {"Collector", "HandlerSeconds", "PublishSeconds"},
    "gnsq_lite.contrib.opentelemetry": {"Tracing", "PublishTracing"},
    "gnsq_lite.contrib.sentry": {"SentryMiddleware"},
    "gnsq_lite.contrib.statsd": {"StatsdMiddleware"},
}


def plain(function: object) -> str:
    """Return a signature without its annotations."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_the_package_exports_these_names_and_no_others() -> None:
    assert set(gnsq_lite.__all__) == EXPORTED
    assert all(hasattr(gnsq_lite, name) for name in EXPORTED)
    assert sorted(gnsq_lite.__all__) == list(dict.fromkeys(sorted(gnsq_lite.__all__)))


@pytest.mark.parametrize("owner", MEMBERS, ids=lambda owner: owner.__name__)
def test_the_methods_have_these_signatures(owner: type) -> None:
    assert {name: plain(getattr(owner, name)) for name in MEMBERS[owner]} == MEMBERS[owner]


def test_readers_and_writers_are_context_managers() -> None:
    for owner in (Reader, Writer):
        assert hasattr(owner, "__enter__")
        assert hasattr(owner, "__exit__")


def test_the_arguments_have_these_names_and_all_but_the_first_are_keywords() -> None:
    reader = {"topic", "channel", "handler", *(spec.name for spec in fields(ReaderOptions))}
    assert [name for name in READER_ARGUMENTS if name not in reader] == []
    assert str(inspect.signature(Reader)).startswith("(topic: 'str', channel: 'str', handler: ")
    writer = {"nsqd_tcp_addresses", *(spec.name for spec in fields(WriterOptions))}
    assert [name for name in WRITER_ARGUMENTS if name not in writer] == []
    assert list(inspect.signature(Writer).parameters) == ["nsqd_tcp_addresses", "options"]


def test_a_message_has_these_attributes() -> None:
    assert [name for name in MESSAGE_ATTRIBUTES if not hasattr(Message, name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_exports_these_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in MODULES[module] if not hasattr(found, name)] == []


def test_every_exported_name_is_documented() -> None:
    for name in EXPORTED - {"__version__"}:
        assert inspect.getdoc(getattr(gnsq_lite, name)), name


def test_the_version_comes_from_version_py() -> None:
    text = (PACKAGE / "version.py").read_text(encoding="utf-8")
    assert f'__version__ = "{gnsq_lite.__version__}"' in text


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_all_errors_have_one_root() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(classes) > 40
    assert all(issubclass(each, errors.NSQError) for each in classes)


@pytest.mark.rule("CFG-1")
def test_importing_the_package_needs_no_extra_and_patches_nothing() -> None:
    blocked = ("click", "rich", "pyspark", "pyarrow", "django", "prometheus_client", "pytest", "cryptography")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import gnsq_lite, gnsq_lite.http, gnsq_lite.broker\n"
        "from gevent import monkey; assert not monkey.is_anything_patched()\n"
        "import threading; assert threading.active_count() == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_unused_modules_are_not_imported() -> None:
    program = (
        "import sys; from gnsq_lite import Reader, Worker, Writer\n"
        "slow = {'urllib3', 'rich', 'click', 'gnsq_lite.http', 'gnsq_lite.broker', 'asyncio'}\n"
        "sys.exit(', '.join(sorted(slow & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == ""


def test_every_module_of_the_core_can_be_imported_alone() -> None:
    need_extras = (
        "gnsq_lite.arrow",
        "gnsq_lite.spark",
        "gnsq_lite.recording",
        "gnsq_lite.contrib",
        "gnsq_lite.cli",
        "gnsq_lite.__main__",
    )
    names = [
        found.name
        for found in pkgutil.walk_packages([str(PACKAGE)], "gnsq_lite.")
        if not found.name.startswith(need_extras)
    ]
    assert len(names) > 40
    for name in names:
        importlib.import_module(name)
