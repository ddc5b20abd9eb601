"""Stats that are taken in the middle of a step of the loop."""

from __future__ import annotations

import pytest

from tests.servers import ServerHandle
from tests.system.test_process_faults import python

pytestmark = pytest.mark.program

#: A handler that comes while a connection is being taken in.
JOINING = """
import sys, time
from gevent import monkey; monkey.patch_all()
from gnsq_lite import Reader
from gnsq_lite.consume.endpoints import Losses
joined, seen = Losses.joined, []
def look_and_join(self, key):
    seen.extend(reader.stats().connections)
    joined(self, key)
Losses.joined = look_and_join
reader = Reader(sys.argv[2], "ch", lambda message: None, nsqd_tcp_addresses=sys.argv[1])
reader.start(block=False)
while not reader.stats().ready:
    time.sleep(0.01)
reader.close()
print(len(seen))
"""


def test_a_connection_that_is_being_taken_in_is_in_the_stats(secured: ServerHandle, topic: str) -> None:
    done = python(JOINING, secured.tcp_address, topic, limit=60.0)
    assert (done.stdout, done.stderr) == (b"1\n", b""), done.stderr.decode()
