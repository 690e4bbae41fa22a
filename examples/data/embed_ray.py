#!/usr/bin/env python3
"""Embeds the column `text` of Parquet files with Ray Data.

    python examples/data/embed_ray.py MODEL INPUT OUTPUT

Needs `pip install 'ray[data]' kivuml` on each machine, and MODEL by the same name: a Hugging Face repository, a bundle
on a shared path, or `s3://…`. An actor per core has a model.
"""

import sys
from pathlib import Path

import ray
from kivuml.arrow import Embedder


ROWS_PER_BLOCK = 4096


class AddVectors:
    def __init__(self, model):
        self.embed = Embedder(model, threads=1)

    def __call__(self, rows):
        return rows.append_column("embedding", self.embed(rows["text"]))


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: embed_ray.py MODEL INPUT OUTPUT")
    _, model, source, output = sys.argv
    if Path(source).absolute().is_relative_to(Path(output).absolute()):
        sys.exit("expected OUTPUT to be another folder than INPUT and those above it, since it is replaced")
    ray.init()
    # Actors stay until the end. Each reserves half a core, since files are read and written by other tasks.
    actors = ray.data.ActorPoolStrategy(size=int(ray.cluster_resources()["CPU"]))
    # Ray reads small files as one block, which one actor would embed alone.
    rows = ray.data.read_parquet(source).repartition(target_num_rows_per_block=ROWS_PER_BLOCK)
    rows = rows.map_batches(
        AddVectors, fn_constructor_args=[model], compute=actors, batch_format="pyarrow", batch_size=1024, num_cpus=0.5
    )
    rows.write_parquet(output, mode="overwrite")


if __name__ == "__main__":
    main()
