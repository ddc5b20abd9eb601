"""Processes that other libraries or the environment change: all calls work, or one error names a remedy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.certs import Certificates
from tests.conftest import MakeBroker
from tests.programs import running

pytestmark = pytest.mark.program

PROGRAM = """
import os, ssl, sys, time

kind, patch, address, ca = sys.argv[1:]
options, output = {}, 1
if kind in ("context", "https"):
    context = ssl.create_default_context(cafile=ca)
    options = {"tls": context} if kind == "context" else {"lookupd_tls": context}
if kind == "eventlet":
    import eventlet
    eventlet.monkey_patch()
if patch == "patched":
    from gevent import monkey
    monkey.patch_all()
if kind == "closed":
    output = os.dup(1)
    for descriptor in range(3):
        os.close(descriptor)

def say(*words):
    os.write(output, (" ".join(map(str, words)) + "\\n").encode())

from gnsq_lite import Reader, Writer, errors

def use(topic):
    began = time.monotonic()
    try:
        writer = Writer(address, **options)
    except errors.OptionError as error:
        say("refused", type(error).__name__, error)
        assert time.monotonic() - began < 10
        try:
            Reader("t", "c", print, nsqd_tcp_addresses=address, **options)
        except errors.OptionError as again:
            assert str(again) == str(error)
            return
        assert False, "a Reader was made"
    writer.publish(topic, b"1")
    writer.publish_nowait(topic, b"2").result()
    got = []
    reader = Reader(topic, "c", lambda message: got.append(message.body), nsqd_tcp_addresses=address, **options)
    reader.start(block=False)
    while len(got) < 2:
        time.sleep(0.01)
    reader.close()
    writer.close()
    say("works", *sorted(got))

use("first")
if kind == "fork":
    child = os.fork()
    use("child" if child == 0 else "second")
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

ENVIRONMENTS = [
    ("libuv", "plain", "GEVENT_LOOP='libuv-cffi': is not supported; unset GEVENT_LOOP"),
    ("libuv", "patched", "GEVENT_LOOP='libuv-cffi': is not supported; unset GEVENT_LOOP"),
    ("libev", "plain", ""),
    ("libev", "patched", ""),
    ("eventlet", "plain", "eventlet.monkey_patch='called': replaces what gevent and this library wait with; do not"),
    ("eventlet", "patched", "eventlet.monkey_patch='called': replaces what gevent and this library wait with; do not"),
    ("context", "plain", ""),
    ("context", "patched", ""),
    ("https", "patched", "lookupd_tls='SSLContext': was made before monkey.patch_all()"),
    ("closed", "plain", ""),
    ("closed", "patched", ""),
    ("fork", "plain", ""),
    ("fork", "patched", ""),
]
LOOPS = {"libuv": {"GEVENT_LOOP": "libuv-cffi"}, "libev": {"GEVENT_LOOP": "libev-cffi"}}


@pytest.mark.parametrize(("kind", "patch", "refusal"), ENVIRONMENTS, ids=[f"{e[0]}-{e[1]}" for e in ENVIRONMENTS])
def test_each_publish_and_read_works_or_is_refused_at_construction(
    make_broker: MakeBroker, certs: Certificates, tmp_path: Path, kind: str, patch: str, refusal: str
) -> None:
    if kind == "eventlet" and importlib.util.find_spec("eventlet") is None:
        pytest.skip("eventlet is not installed")
    broker = make_broker(tls_cert=certs.server.cert, tls_key=certs.server.key)
    with running(["-c", PROGRAM, kind, patch, broker.tcp_address, certs.ca], tmp_path, LOOPS.get(kind)) as program:
        assert program.ends() == 0
    assert program.output.count(f"refused OptionError {refusal}") == bool(refusal), program.output
    if not refusal:
        assert program.output.count("works b'1' b'2'") == (3 if kind == "fork" else 1), program.output


HANDLER_THREADS = """
from gevent import monkey
monkey.patch_all()
from gnsq_lite import Reader
Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1", handler_pool="thread")
"""


def test_the_warning_of_handler_threads_in_a_patched_process_names_subprocess(tmp_path: Path) -> None:
    with running(["-c", HANDLER_THREADS], tmp_path) as program:
        assert program.ends() == 0
    assert program.output.count("subprocess runs a command and then raises TypeError") == 1
