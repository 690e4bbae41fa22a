"""Measures the Python package: start, memory, cost of a call, and what a million calls leave behind.

    python benches/python.py BUNDLE [TABLE] [--calls 1000000]

Needs the package, which `benches/run.py python` installs. BUNDLE is an encoder's. TABLE is a bundle with a table of static
embeddings, whose run takes next to no time: a call's time is then an upper bound for the package's cost.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TEXT = "The quick brown fox jumps over the lazy dog, and the cat sleeps on the mat."
FIRST_VECTOR = "import sys; from kivuml import load; load(sys.argv[1]).encode('hello')"
MEMORY = f"""
import resource, sys
from kivuml import load
model = load(sys.argv[1])
for first in range(0, 1000, 32):
    model.encode([f"{{number}} {TEXT}" for number in range(first, min(first + 32, 1000))])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def seconds(code, *arguments):
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    return time.perf_counter() - started


def start(bundle, runs=15):
    """Milliseconds to the first vector above the import of numpy: the median of differences of alternating runs."""
    differences = [seconds(FIRST_VECTOR, bundle) - seconds("import numpy") for _ in range(runs)]
    return statistics.median(differences) * 1e3


def call(bundle, count, repeats):
    from kivuml import load

    model, texts, times = load(bundle), [TEXT] * count, []
    for _ in range(repeats):
        started = time.perf_counter()
        model.encode(texts)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def state():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"MB": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1), "files": len(os.listdir("/proc/self/fd"))}


def many(bundle, calls):
    from kivuml import load

    model, found = load(bundle), []
    for number in range(calls + 1):
        if number in (calls // 100, calls):
            found.append(state())
        model.encode(TEXT)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("table", nargs="?")
    parser.add_argument("--calls", type=int, default=0)
    options = parser.parse_args()
    figures = {
        "first vector above numpy, ms": start(options.bundle),
        "peak memory after 1,000 texts, MB": float(subprocess.check_output([sys.executable, "-c", MEMORY, options.bundle])),
        "32 texts, ms": call(options.bundle, 32, 50),
    }
    if options.table:
        figures["32 texts with a table, ms"] = call(options.table, 32, 1000)
        figures["cost at most, %"] = 100 * figures["32 texts with a table, ms"] / figures["32 texts, ms"]
    figures = {name: round(value, 2) for name, value in figures.items()}
    if options.calls:
        figures[f"state after 1 % of {options.calls} calls, and after all"] = many(options.table or options.bundle, options.calls)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
