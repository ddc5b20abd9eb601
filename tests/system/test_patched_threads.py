"""Handlers in native threads of a monkey-patched process: no patched lock of the library's keeps one."""

from __future__ import annotations

import pytest

from tests.programs import python
from tests.servers import ServerHandle

pytestmark = pytest.mark.program

RAISES = """
from gevent import monkey
monkey.patch_all()
import logging, sys, time, warnings
warnings.simplefilter("ignore", RuntimeWarning)
from gnsq_lite import Reader, Writer
from gnsq_lite.contrib import give_up
address, topic, folder, batch = sys.argv[1:]

class Keeps(logging.Handler):
    def emit(self, record):
        time.sleep(0)  # gives way with the lock held, as one that writes to a socket does
        records.append((record.name, record.getMessage(), record.exc_info and type(record.exc_info[1]), record.topic))

records, failures, handled = [], [], []
logging.getLogger().addHandler(Keeps())

def handle(given):
    for message in given if batch else (given,):
        number = int(message.body)
        if number % 5 == 0:
            raise ValueError(number)
        handled.append(number)

def failed(message, error):
    logging.getLogger("gnsq_lite.hook").error("hook", extra={"topic": message.topic})
    failures.append((message.has_responded, error))

options = {"batch_size": 4, "batch_wait": 0.01} if batch else {}
reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=address, handler_pool="thread", concurrency=8, max_attempts=3,
                max_in_flight=50, requeue_delay=0.0, backoff=False, on_failure=failed,
                on_give_up=give_up.to_directory(folder) if folder else None, **options)
reader.start(block=False)
with Writer(address) as writer:
    writer.multipublish(topic, [b"%d" % number for number in range(200)])
limit = time.monotonic() + 30
while (stats := reader.stats()).finished < 200:
    assert time.monotonic() < limit, stats
    time.sleep(0.01)
while reader.stats().handlers_running:
    assert time.monotonic() < limit
    time.sleep(0.01)
reader.close(5)
assert reader.stats().handlers_abandoned == 0
told = [each for each in records if each[2] is ValueError]
assert len(told) == len(failures) >= 120 or batch, (len(told), len(failures))
assert all(answered for answered, _ in failures)
assert all(each[0] == "gnsq_lite.reader" and each[3] == topic for each in told), told[:3]
assert folder or batch or sum("giving up" in each[1] for each in records) == 40, len(records)
print("done", flush=True)
"""


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("how", ["alone", "in batches", "kept in a directory"])
def test_handlers_that_raise_hang_at_no_lock_of_loggings(
    broker: ServerHandle, topic: str, how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker.prepare(topic, "ch")
    folder = str(tmp_path_factory.mktemp("kept")) if how == "kept in a directory" else ""
    done = python(RAISES, broker.tcp_address, topic, folder, "yes" if how == "in batches" else "")
    assert (done.returncode, done.stdout) == (0, b"done\n"), done


HOOKS = """
from gevent import monkey
monkey.patch_all()
import sys, time
from gnsq_lite import Reader, Writer
address, topic = sys.argv[1:]
failures, told = [], []

def handle(message):
    failures.append(message)
    raise ValueError

def failed(message, error):
    time.sleep(0.5)
    told.append(error)

options = {"nsqd_tcp_addresses": address, "handler_pool": "thread", "max_attempts": 1}
reader = Reader(topic, "ch", handle, on_failure=failed, **options)
reader.start(block=False)
with Writer(address) as writer:
    writer.publish(topic, b"x")
while not failures or reader.stats().handlers_running:
    time.sleep(0.01)
reader.close()
assert len(told) == 1 and reader.stats().handlers_abandoned == 0, told
print("done", flush=True)
"""


@pytest.mark.rule("CLOSE-1")
def test_close_waits_for_the_hooks_of_handlers(broker: ServerHandle, topic: str) -> None:
    done = python(HOOKS, broker.tcp_address, topic)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done


WARNS = """
from gevent import monkey
monkey.patch_all()
import warnings
from gnsq_lite import Reader
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for pool in ("thread", "greenlet", "inline", "auto"):
        Reader("t", "ch", print, nsqd_tcp_addresses="127.0.0.1:1", handler_pool=pool)
assert len(caught) == 1, caught
assert caught[0].filename == "<string>" and "logging" in str(caught[0].message), caught[0]
"""


def test_threads_in_a_patched_process_are_warned_of_when_the_reader_is_made() -> None:
    done = python(WARNS)
    assert done.returncode == 0, done
