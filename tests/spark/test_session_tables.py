"""The page's recipes for tables of Delta and Iceberg: a batch that runs again after its table had it is there once.

Their jars are for one version of Spark each: ``GNSQ_DELTA`` and ``GNSQ_ICEBERG`` name folders of those that fit.  Each
kind wants a session of its own, so each recipe runs as pasted in a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tests.programs import running
from tests.servers import ServerHandle
from tests.spark.jars import JARS, SETTINGS
from tests.spark.option_tables import PAGE
from tests.spark.streams import Feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.filterwarnings("default")]

TABLE = {"delta": 'spark.read.format("delta").load(f"{work}/delta")', "iceberg": 'spark.table("lake.db.clicks")'}

#: Before the recipe.
BEFORE = """
import json, os, pathlib, signal, sys, time
from gnsq_lite.spark import session

given = json.loads(pathlib.Path("given.json").read_text())
work = given["work"]
spark = session("local[2]", "tables", given["conf"])
spark.sparkContext.setLogLevel("ERROR")
clicks = spark.readStream.format("nsq").options(**given["options"]).load()
"""

#: After it: the first time Spark finds the note of its next batch in its way, so that the batch is in the table and
#: not in the checkpoint, and all of it is killed; the second time it goes on from there.
AFTER = """
def wait(condition):
    deadline = time.monotonic() + 400
    while not condition() and query.isActive:
        assert time.monotonic() < deadline
        time.sleep(0.2)

def rows():
    try:
        return sorted(int(bytes(row.body)) for row in TABLE.select("body").collect())
    except Exception as error:
        assert any(what in str(error) for what in ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_")), error
        return []

commits = pathlib.Path(work, given["kind"] + "-checkpoint", "commits")
wait(lambda: len(rows()) >= given["first"])
if not given["again"]:
    wait(lambda: list(commits.glob("[0-9]*")))
    query.processAllAvailable()
    newest = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(newest + 1) / "in its way").mkdir(parents=True)
    print("publish", flush=True)
    wait(lambda: False)
    print("ended", query.exception() is not None, len(rows()), query.exception(), flush=True)
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
wait(lambda: len(rows()) >= given["all"])
query.processAllAvailable()
query.stop()
assert rows() == list(range(given["all"])), len(rows())
spark.stop()
"""


def recipe(kind: str) -> str:
    """Return the page's block that writes to such a table."""
    found = re.findall(r"::\n\n((?:   [^\n]*\n|\n)+)", PAGE.read_text(encoding="utf-8"))
    (block,) = [textwrap.dedent(text) for text in found if f'format("{kind}")' in text]
    return block


def program(kind: str) -> str:
    """Return the recipe, within what surrounds it; a query whose Python was late for Spark's 10 s is started again."""
    run = f"""
recipe = {recipe(kind)!r}
for _ in range(5):
    exec(recipe)
    while query.isActive and query.lastProgress is None:
        time.sleep(0.2)
    if "connect back" not in str(query.exception()) and "CANNOT_OPEN_SOCKET" not in str(query.exception()):
        break
"""
    return BEFORE + run + AFTER.replace("TABLE", TABLE[kind], 1)


def write_given(folder: Path, kind: str, feed: Feed, *, again: bool) -> None:
    conf = {
        "spark.jars": ",".join(map(str, sorted(Path(JARS[kind]).glob("*.jar")))),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **{name: text.format(work=folder) for name, text in SETTINGS[kind].items()},
    }
    options = feed.options(maxOffsetsPerTrigger="300")
    given = {
        "work": str(folder),
        "conf": conf,
        "options": options,
        "kind": kind,
        "first": 300,
        "all": 700,
        "again": again,
    }
    (folder / "given.json").write_text(json.dumps(given))


@pytest.mark.parametrize("kind", [kind for kind, folder in JARS.items() if folder])
@pytest.mark.rule("PIPE-3")
def test_a_batch_that_runs_again_is_in_the_table_once(
    kind: str, nsqd: ServerHandle, topic: str, tmp_path: Path
) -> None:
    feed = Feed(nsqd, topic, tmp_path)
    feed.publish(0, 300)
    (tmp_path / "recipe.py").write_text(program(kind), encoding="utf-8")
    env = {"TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    write_given(tmp_path, kind, feed, again=False)
    with running(["recipe.py"], tmp_path, env=env) as first:
        first.says("publish", timeout=400)
        feed.publish(300, 200)
        assert first.ends(400) == -9, first.output
    found = re.search(r"ended True (\d+)", first.output)
    assert found is not None, first.output
    assert int(found[1]) > 300, f"the table has the batch, and Spark has not noted that: {first.output}"
    for blocked in (tmp_path / f"{kind}-checkpoint" / "commits").glob("*/in its way"):
        shutil.rmtree(blocked.parent)
    feed.publish(500, 200)
    write_given(tmp_path, kind, feed, again=True)
    with running(["recipe.py"], tmp_path, env=env) as second:
        assert second.ends(400) == 0, second.output
