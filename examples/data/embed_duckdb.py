#!/usr/bin/env python3
"""Embeds the column `text` of Parquet files with DuckDB.

    python examples/data/embed_duckdb.py MODEL INPUT OUTPUT

Needs `pip install duckdb pyarrow kivuml`. MODEL is a Hugging Face repository, a bundle, or `s3://…`.
"""

import sys

import duckdb
from kivuml.arrow import Embedder


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: embed_duckdb.py MODEL INPUT OUTPUT")
    _, model, source, output = sys.argv
    database = duckdb.connect()
    database.create_function(
        "embed", Embedder(model).__call__, ["VARCHAR"], "FLOAT[]", type="arrow", null_handling="special"
    )
    database.execute("COPY (SELECT *, embed(text) AS embedding FROM read_parquet($1)) TO $2 (FORMAT parquet)", [source, output])


if __name__ == "__main__":
    main()
