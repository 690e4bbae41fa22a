#!/usr/bin/env python3
"""Embeds the column `text` of Parquet files with Spark.

    spark-submit examples/data/embed_spark.py MODEL INPUT OUTPUT

Needs `pip install pyspark pyarrow kivuml` on each machine, and MODEL by the same name: a Hugging Face repository, a
bundle on a shared path, or `s3://…`. Each of Spark's Python processes opens the model once.
"""

import sys
from pathlib import Path

import pyarrow as pa
from kivuml.arrow import Embedder
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: embed_spark.py MODEL INPUT OUTPUT")
    _, model, source, output = sys.argv
    if Path(source).absolute().is_relative_to(Path(output).absolute()):
        sys.exit("expected OUTPUT to be another folder than INPUT and those above it, since it is replaced")
    # Spark runs a task per core.
    embed = Embedder(model, threads=1)

    def add_vectors(batches):
        for rows in batches:
            yield pa.RecordBatch.from_arrays([*rows.columns, embed(rows["text"])], [*rows.schema.names, "embedding"])

    spark = SparkSession.builder.appName("embed").getOrCreate()
    rows = spark.read.parquet(source)
    schema = StructType([*rows.schema, StructField("embedding", ArrayType(FloatType()))])
    rows.mapInArrow(add_vectors, schema).write.parquet(output, mode="overwrite")
    spark.stop()


if __name__ == "__main__":
    main()
