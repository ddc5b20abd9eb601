"""Parses JSON bodies into columns with Spark's parser, and publishes unparsed bodies to a topic.

These are functions, and not options of the source.  A Python source cannot change Spark's plan, and would parse each
message in Python by different rules.  The functions use Spark's own parser in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnsq_lite.errors import OptionError
from gnsq_lite.spark.options import SinkOptions, parse

#: Column with the text of a body that was not parsed, or null if the body was parsed.
UNPARSED = "unparsed"
#: A body between these texts parses only if it is exactly one JSON value.  Spark ignores text after the first value.
_BEFORE, _AFTER, _WHOLE = '{"gnsq_lite_body":', ',"gnsq_lite_end":1}', "gnsq_lite_end INT"

Store = Callable[[Any, int], None]


def parse_json(frame: Any, schema: str, *, unparsed: str = UNPARSED) -> Any:
    """Parse the bodies of *frame*, and return *frame* with the columns of *schema* (Spark's DDL) and *unparsed*.

    A field that a body lacks is null.  A body is unparsed if it is not a JSON object, or has a value of another type.
    Unlike ``from_json``, this function also rejects whitespace alone, text after the object, and invalid UTF-8.  Raises
    OptionError if *frame* has one of the columns already.
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
    """Return a function for ``foreachBatch`` that publishes unparsed bodies, and passes the other rows to *store*.

    *sink* has the options of the sink, with the topic for the unchanged bodies.  A batch that runs again publishes its
    unparsed bodies again.  Raises OptionError.
    """
    if not parse(SinkOptions, sink).topic:
        raise OptionError("topic", "", "is required for the dead letters")

    def split(batch: Any, batch_id: int) -> None:
        batch.persist()  # both writes then read the source only once
        try:
            dead = batch.where(f"`{unparsed}` IS NOT NULL").select("body")
            dead.write.format("nsq").options(**sink).mode("append").save()
            store(batch.where(f"`{unparsed}` IS NULL").drop(unparsed), batch_id)
        finally:
            batch.unpersist()

    return split
