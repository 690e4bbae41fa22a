#!/usr/bin/env python3
"""Embeds the column `text` of Parquet files with Daft.

    python examples/data/embed_daft.py MODEL INPUT OUTPUT

Needs `pip install daft kivuml`, and on a Ray cluster `DAFT_RUNNER=ray`.
"""

import sys
from pathlib import Path

import daft
from daft import DataType
from kivuml.arrow import Embedder


# The model uses all cores; more processes would add copies of the rows.
@daft.cls(use_process=False)
class Vectors:
    def __init__(self, model):
        self.embed = Embedder(model)

    @daft.method.batch(return_dtype=DataType.list(DataType.float32()))
    def of(self, texts):
        return self.embed(texts.to_arrow())


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: embed_daft.py MODEL INPUT OUTPUT")
    _, model, source, output = sys.argv
    if Path(source).absolute().is_relative_to(Path(output).absolute()):
        sys.exit("expected OUTPUT to be another folder than INPUT and those above it, since it is replaced")
    rows = daft.read_parquet(source)
    vectors = Vectors(model)
    rows.with_column("embedding", vectors.of(rows["text"])).write_parquet(output, write_mode="overwrite")


if __name__ == "__main__":
    main()
