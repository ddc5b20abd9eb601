"""A process that records, plans or publishes does not import pandas, which takes 0.2 s and 35 MB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import servers
from tests.programs import ROOT, running
from tests.recording.publishing import publish

#: pyarrow imports pandas before it converts its first Python object, if numpy is installed.
PANDAS = 'raise RuntimeError("pandas is imported")'
CALLS = """
import sys
from gnsq_lite.arrow import to_batch
from gnsq_lite.recording.known import DedupIndex
from gnsq_lite.recording.files import Files, Folder
from gnsq_lite.recording.recording import Recording
from gnsq_lite.spark.batch import NsqBatchReader
from gnsq_lite.spark.mpub import payloads
from gnsq_lite.spark.nsq_log.schema import to_log_batch
from gnsq_lite.spark.options import SinkOptions, SourceOptions, parse
from gnsq_lite.spark.rows import check
from gnsq_lite.spark.sink import batched
from gnsq_lite.spark.stream import NsqStreamReader
from tests.recording.fakes import FakeMessage

path = sys.argv[1]
(batch,) = Recording(path).batches()
times = batch.column("timestamp").cast("int64").to_pylist()
middle = times[25] // 1000
found = Recording(path).batches(since=times[25] / 1e6, until=times[-1] / 1e6 + 1)
assert sum(one.num_rows for one in found) < 50, "the frame was not filtered"
for kind in (NsqStreamReader, NsqBatchReader):
    for start in ({}, {"startingTimestamp": str(middle)}, {"startingOffsets": "earliest"}):
        reader = kind(parse(SourceOptions, {"recording": path, **start}))
        if kind is NsqStreamReader:
            begin = reader.initialOffset()
            partitions = reader.partitions(begin, reader.latestOffset(begin))
        else:
            partitions = reader.partitions()
        print(kind.__name__, start, sum(batch.num_rows for one in partitions for batch in reader.read(one)))

messages = [FakeMessage(n, nsqd=f"127.0.0.1:415{n % 2}") for n in range(50)]
messages[3].id, messages[4].headers, messages[5].partition = bytes(range(16)), {"a": 1}, 2
mixed = to_batch(messages, include_youzan=True)
index = DedupIndex(Folder(path, Files()), 1_000)
index.add(-1, mixed.slice(0, 10))
assert index.fresh(-1, mixed).num_rows == 40

class LogMessage(FakeMessage):
    queue_offset = 7

assert to_log_batch("t", 1, [LogMessage(n) for n in range(3)]).num_rows == 3
rows = [(b"body", "t", None), (b"", "t", 1.5)]
options = parse(SinkOptions, {"topic": "t", "nsqdTCPAddresses": "n", "onBadRow": "skip"})
for one in batched(iter(rows), ["body", "topic", "defer"]):
    (run,) = check(one, options).runs
    assert [piece.count for piece in payloads("t", run.bodies, 100, 1000)] == [1]

try:
    import pyarrow
    pyarrow.scalar(1)
except RuntimeError as error:
    print("without buffers:", error)
"""


@pytest.mark.parametrize("impl", ["c", "python"])
def test_recorders_planners_and_sinks_do_not_import_pandas(tmp_path: Path, impl: str) -> None:
    pytest.importorskip("numpy", reason="without numpy, pyarrow does not look for pandas")
    (tmp_path / "pandas.py").write_text(PANDAS)
    env, place = {"GNSQ_LITE_IMPL": impl}, str(tmp_path / "recording")
    with servers.embedded_nsqd() as nsqd:
        publish(nsqd.tcp_address, "t", 0, 25)
        publish(nsqd.tcp_address, "t", 25, 25)
        arguments = ["record", "t", "c", place, "--nsqd-tcp-address", nsqd.tcp_address, "--until-empty"]
        with running(["-m", "gnsq_lite", *arguments], tmp_path, env) as program:
            assert program.ends() == 0, program.output
    with running(["-c", CALLS, place], tmp_path, env) as program:
        assert program.ends() == 0, program.output
    assert "without buffers: pandas is imported" in program.output.splitlines(), "the test cannot fail"


def test_only_one_module_gives_python_values_to_pyarrow() -> None:
    modules = [path for path in (ROOT / "gnsq_lite").rglob("*.py") if path.name != "arrow_values.py"]
    calls = ("pa.array(", "pa.scalar(")
    found = [path.name for path in modules if any(call in path.read_text(encoding="utf-8") for call in calls)]
    assert not found, "gnsq_lite.arrow_values builds arrays and scalars without pandas"
