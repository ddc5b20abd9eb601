"""Bodies as columns: JSON parsed by Spark, with a column for what did not parse, and a topic for those rows.

Functions, and no options of the source: a source in Python hands over rows, it has no part in Spark's plan.  It would
have to parse in Python, message by message and by rules of its own; these use Spark's own parser, in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.spark.options import SinkOptions, parse

#: The column that has the text of a body that did not parse; null where it did.
UNPARSED = "unparsed"
#: A body is put between these to see whether it is one JSON value, whole: Spark parses the first and ignores the rest.
_BEFORE, _AFTER, _WHOLE = '{"gnsq_lite_body":', ',"gnsq_lite_end":1}', "gnsq_lite_end INT"

Store = Callable[[Any, int], None]


def parse_json(frame: Any, schema: str, *, unparsed: str = UNPARSED) -> Any:
    """Return *frame* with the columns of *schema*, Spark's DDL, read from its bodies, and the column *unparsed*.

    A field that a body lacks is null.  Not parsed are: what is no object, one with a value of another type, and, which
    ``from_json`` takes, whitespace alone, text after the object, and bytes that are no UTF-8.  Raises OptionError for a
    column that is there already.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    given_type: Any = StructType.fromDDL(schema)
    fields = [*given_type.fieldNames(), unparsed]
    there = {name.lower() for name in frame.columns}
    taken = [name for name in fields if name.lower() in there]
    if taken:
        raise OptionError("schema", schema, f"the frame has a column {taken[0]} already: select or rename it first")
    mode = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": unparsed}
    text = f.col("body").cast("string")
    value = f.from_json(text, StructType([*given_type.fields, StructField(unparsed, StringType())]), mode)
    whole = f.from_json(f.concat(f.lit(_BEFORE), text, f.lit(_AFTER)), _WHOLE).getField("gnsq_lite_end").isNotNull()
    read = frame.withColumn("__value", value)
    parsed = whole & f.is_valid_utf8(text) & f.col("__value").isNotNull() & f.col(f"__value.`{unparsed}`").isNull()
    columns = [f.col(f"__value.`{name}`") for name in given_type.fieldNames()]
    return read.select(*frame.columns, *columns, f.when(~f.coalesce(parsed, f.lit(False)), text).alias(unparsed))


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
