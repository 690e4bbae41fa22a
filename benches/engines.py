"""Compares engines for data with `kivu batch`: rows per second, and processor time per row.

    python benches/engines.py BUNDLE PACKAGE KIVU [ENGINE…] [--rows 100000] [--repeats 1]

PACKAGE is the folder that has the package `kivuml`, KIVU the command, ENGINE among duckdb, daft, ray and spark. The
processor time is that of all processes of a job, also of Spark's and Ray's own, whose start is included. Every output
is compared with the one of `kivu batch`, bit by bit.
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PR_SET_CHILD_SUBREAPER = 36


def used():
    """Processor seconds of the ended children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(command, **variables):
    """Seconds, and processor seconds of the command and of everything that it started."""
    began, before = time.monotonic(), used()
    done = subprocess.run([*map(str, command)], env=os.environ | variables, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{command}\n{done.stderr[-4000:]}")
    # Processes whose parents have ended are now children of this one.
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return seconds, used() - before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("kivu", type=Path)
    parser.add_argument("engines", nargs="*", default=["duckdb", "daft", "ray"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.environ.update(TEST_KIVU=str(options.kivu), TEST_PACKAGE=str(options.package), TEST_BUNDLE=str(options.bundle))
    sys.path.insert(0, str(ROOT / "tests/engines"))
    sys.dont_write_bytecode = True
    import pyarrow.parquet as parquet
    import test_engines as tests

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = tests.table(options.rows)
        tests.write(rows, folder / "in")
        parquet.write_table(rows, folder / "in.parquet")
        batch = [options.kivu, "batch", folder / "in.parquet", folder / "batch.parquet", "--model", options.bundle, "--overwrite"]
        found = {}
        for _ in range(options.repeats):
            found.setdefault("batch", []).append(run(batch))
            expected = tests.read(folder / "batch.parquet")
            for engine in options.engines:
                output = folder / (engine if engine in ("ray", "spark", "daft") else f"{engine}.parquet")
                command = [sys.executable, ROOT / f"examples/data/embed_{engine}.py", options.bundle.resolve(), folder / "in", output]
                found.setdefault(engine, []).append(run(command, **tests.ENGINE))
                if not tests.read(output).equals(expected):
                    sys.exit(f"{engine}: expected the rows of `kivu batch`, but found others")
                print(engine, found[engine][-1], found["batch"][-1], file=sys.stderr, flush=True)
    report = {}
    for engine, runs in found.items():
        # Ratios of runs next to each other.
        pairs = list(zip(runs, found["batch"]))
        report[engine] = {
            "seconds": round(statistics.median(seconds for seconds, _ in runs), 1),
            "processor ms per row": round(statistics.median(processor for _, processor in runs) / options.rows * 1e3, 3),
            "rows per second, of batch": round(statistics.median(batch[0] / engine[0] for engine, batch in pairs), 3),
            "rows per processor second, of batch": round(statistics.median(batch[1] / engine[1] for engine, batch in pairs), 3),
            "overhead per row, us": round(statistics.median((engine[1] - batch[1]) for engine, batch in pairs) / options.rows * 1e6),
        }
    print(json.dumps({"rows": options.rows, "load": os.getloadavg()[0]} | report, indent=2))


if __name__ == "__main__":
    main()
