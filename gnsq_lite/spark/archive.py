"""Topic -> Parquet by day and hour, each micro-batch once; and compaction of the small files that leaves.

Layout of an archive::

    day=2026-11-21/hour=04/batch-QUERY-000012-0.parquet     one micro-batch's rows of that hour
    day=2026-11-21/hour=04/compact-....parquet              several of them, joined
    _batches/QUERY-000012                                   the batch is complete
    _compacting/....json                                    what a compaction replaces; finished after a crash

A batch that runs again overwrites its own files, which are named by query and batch, so every row is there once.

On HDFS and object stores, where Spark writes and names the files, a batch has a directory of its own, which is replaced
when it runs again; nothing is compacted there::

    query=QUERY/batch=000012/day=2026-11-21/hour=04/part-....parquet
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gnsq_lite.errors import NSQError
from gnsq_lite.spark.files import Files

#: SQL of the columns added to the source's: when a row was archived (its lag is this minus timestamp), day and hour.
ADDED = (
    "current_timestamp() AS archived_at",
    "date_format(timestamp, 'yyyy-MM-dd') AS day",
    "date_format(timestamp, 'HH') AS hour",
)


class RowsElsewhere(NSQError):
    """Executors wrote rows of a batch where the driver does not see them."""


def store_batch(
    frame: Any, batch_id: int, query: str, path: Path, count: Callable[[], int], files: Files | None = None
) -> None:
    """Write one micro-batch, of which *count* tells the rows then; a second call for the same batch changes nothing.

    Raises RowsElsewhere: Spark counts a directory of an executor's own for written.
    """
    files = files or Files()
    done = path / "_batches" / f"{query}-{batch_id:06d}"
    if done.exists():
        return
    staging = path / "_staging" / f"{query}-{batch_id:06d}"
    shutil.rmtree(staging, ignore_errors=True)
    frame.selectExpr("*", *ADDED).write.partitionBy("day", "hour").parquet(staging.absolute().as_uri())
    parts = sorted(staging.glob("day=*/hour=*/*.parquet"))
    here, rows = sum(pq.read_metadata(part).num_rows for part in parts), count()
    if here < rows:
        why = "it must be a directory that driver and executors share, or a URL"
        raise RowsElsewhere(f"batch {batch_id} has {rows} rows, of which {here} are in the archive {path}: {why}")
    wanted = f"batch-{query}-{batch_id:06d}-"
    for leftover in path.glob(f"day=*/hour=*/{wanted}*.parquet"):
        leftover.unlink()
    for number, part in enumerate(parts):
        target = path / part.parent.relative_to(staging)
        target.mkdir(parents=True, exist_ok=True)
        with part.open("rb") as file:
            files.sync(file.fileno())
        files.rename(part, target / f"{wanted}{number}.parquet")
        files.sync_directory(target)
    done.parent.mkdir(exist_ok=True)
    files.replace_text(done, "")
    shutil.rmtree(staging, ignore_errors=True)


def replace_batch(frame: Any, batch_id: int, query: str, url: str) -> None:
    """Write one micro-batch below *url*; a second call for the same batch replaces its files."""
    target = f"{url}/query={query}/batch={batch_id:06d}"
    frame.selectExpr("*", *ADDED).write.mode("overwrite").partitionBy("day", "hour").parquet(target)


@dataclass(frozen=True)
class Compacted:
    """What a compaction did."""

    partitions: int
    files_before: int
    files_after: int
    rows: int


def compact(path: str | Path, *, min_files: int = 4, min_age: float = 3600.0, files: Files | None = None) -> Compacted:
    """Join the files of each hour that has at least *min_files*, none written in the last *min_age* seconds.

    Files of a batch that has not ended are left alone: it runs again and replaces them.  Safe to interrupt: the next
    call finishes what was begun.  A reader at that very moment may miss an hour's rows; run it on hours nobody reads
    now.
    """
    root, files = Path(path), files or Files()
    finish_compactions(root, files)
    partitions = before = after = rows = 0
    ended = {done.name for done in (root / "_batches").glob("*")}
    for folder in sorted(root.glob("day=*/hour=*")):
        small = [one for one in sorted(folder.glob("*.parquet")) if _is_final(one, ended)]
        newest = max((one.stat().st_mtime for one in small), default=0.0)
        if len(small) < max(2, min_files) or newest > time.time() - min_age:
            continue
        rows += _join(root, folder, small, files)
        partitions, before, after = partitions + 1, before + len(small), after + 1
    return Compacted(partitions, before, after, rows)


def _is_final(file: Path, ended: set[str]) -> bool:
    """Whether no run of a batch will replace *file*: it is compacted, or of a batch in *ended*."""
    batch, _, number = file.stem.removeprefix("batch-").rpartition("-")
    return not (file.name.startswith("batch-") and number.isdigit()) or batch in ended


def _join(root: Path, folder: Path, small: list[Path], files: Files) -> int:
    name = f"compact-{uuid.uuid4().hex}"
    fresh = root / "_compacting" / f"{name}.parquet"
    fresh.parent.mkdir(exist_ok=True)
    rows = 0
    schemas = sorted(map(instants, map(pq.read_schema, small)), key=len, reverse=True)
    schema = pa.unify_schemas(schemas)  # includeYouzan may have been switched on in this hour
    with pq.ParquetWriter(fresh, schema) as writer:
        for batch in _batches(small):
            writer.write_batch(_cast(batch, schema))
            rows += batch.num_rows
    with fresh.open("rb") as file:
        files.sync(file.fileno())
    plan = {
        "fresh": str(fresh.relative_to(root)),
        "target": str((folder / f"{name}.parquet").relative_to(root)),
        "replaces": [str(one.relative_to(root)) for one in small],
    }
    files.replace_text(fresh.with_suffix(".json"), json.dumps(plan))
    _carry_out(root, fresh.with_suffix(".json"), files)
    return rows


def instants(schema: pa.Schema) -> pa.Schema:
    """Return *schema* with its timestamps as microseconds in UTC.

    Spark writes INT96 unless it is told otherwise, which Arrow reads as nanoseconds without a time zone; written back
    so, Spark would refuse them.
    """
    utc = pa.timestamp("us", tz="UTC")
    fields = [field.with_type(utc) if pa.types.is_timestamp(field.type) else field for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return *batch* with the columns of *schema*; those it lacks are null."""
    there = set(batch.schema.names)
    arrays = [
        batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(small: list[Path]) -> Iterator[pa.RecordBatch]:
    for one in small:
        yield from pq.ParquetFile(one).iter_batches()


def finish_compactions(root: Path, files: Files) -> None:
    """Carry out plans that a crash left, and remove files no plan names."""
    for plan in sorted((root / "_compacting").glob("*.json")):
        _carry_out(root, plan, files)
    for orphan in (root / "_compacting").glob("*"):
        files.unlink(orphan)


def _carry_out(root: Path, path: Path, files: Files) -> None:
    plan = json.loads(path.read_text())
    for old in plan["replaces"]:
        files.unlink(root / old)
    if (root / plan["fresh"]).exists():
        files.rename(root / plan["fresh"], root / plan["target"])
    files.sync_directory((root / plan["target"]).parent)
    files.unlink(path)
