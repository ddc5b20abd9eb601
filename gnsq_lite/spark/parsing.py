"""Bodies as columns: JSON parsed by Spark, with a column for what did not parse, and a topic for those rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.spark.options import SinkOptions, parse

#: The column that has the text of a body that did not parse; null where it did.
UNPARSED = "unparsed"

Store = Callable[[Any, int], None]


def parse_json(frame: Any, schema: str, *, unparsed: str = UNPARSED) -> Any:
    """Return *frame* with the columns of *schema*, Spark's DDL, read from its bodies, and the column *unparsed*.

    A field that a body lacks is null.  Raises OptionError for a column that is there already.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    given_type: Any = StructType.fromDDL(schema)
    fields = [*given_type.fieldNames(), unparsed]
    taken = [name for name in fields if name in frame.columns]
    if taken:
        raise OptionError("schema", schema, f"the frame has a column {taken[0]} already: select or rename it first")
    mode = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": unparsed}
    value = f.from_json(f.col("body").cast("string"), f"{schema}, `{unparsed}` STRING", mode)
    return frame.withColumn("__value", value).select(*frame.columns, *(f"__value.`{name}`" for name in fields))


def with_dead_letters(store: Store, sink: Mapping[str, str], *, unparsed: str = UNPARSED) -> Store:
    """Return a function for ``foreachBatch``: what did not parse is published, the rest given to *store*.

    *sink* are the options of the sink, the dead letters' topic among them.  At least once: a batch that runs again
    publishes its dead letters again.  The bodies are those that came.  Raises OptionError.
    """
    if not parse(SinkOptions, sink).topic:
        raise OptionError("topic", "", "is required: where dead letters go")

    def split(batch: Any, batch_id: int) -> None:
        batch.persist()  # both halves have the same rows, and the source is read once
        try:
            dead = batch.where(f"`{unparsed}` IS NOT NULL").select("body")
            dead.write.format("nsq").options(**sink).mode("append").save()
            store(batch.where(f"`{unparsed}` IS NULL").drop(unparsed), batch_id)
        finally:
            batch.unpersist()

    return split
