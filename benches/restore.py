"""Measures a restored function: the time to its first response, and how much of a bundle this request reads.

    python benches/restore.py API BUNDLE [--instructions avx2] [--cold]

API is the function's program. With `--cold`, the bundle leaves its memory and the page cache while the function is held back,
so that afterwards its memory has what the first request has touched, and the rest of each 64 KiB around. Needs only Python's
standard library and Linux, and root for `--cold`.
"""

import argparse
import ctypes
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/lambda"))
from restores import Snapshot, embed, vector

MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)")
PROCESS_MADVISE, PAGEOUT = 440, 21
# In process_madvise's second argument.
RANGE = type("Range", (ctypes.Structure,), {"_fields_": [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]})
TEXT = "What is deep learning?"


def mappings(process, bundle):
    """The bundle's mapped files: name, start, size, and bytes in memory."""
    found = []
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if mapping := MAPPING.fullmatch(line):
            start, end = int(mapping[1], 16), int(mapping[2], 16)
            found.append([mapping[3], start, end - start, 0])
        elif line.startswith("Rss:"):
            found[-1][3] = int(line.split()[1]) * 1024
    return [mapping for mapping in found if mapping[0].startswith(str(bundle))]


def evict(process, bundle):
    descriptor = os.pidfd_open(process)
    for name, start, size, _ in mappings(process, bundle):
        memory = RANGE(start, size)
        if ctypes.CDLL(None, use_errno=True).syscall(PROCESS_MADVISE, descriptor, ctypes.byref(memory), 1, PAGEOUT, 0) < 0:
            sys.exit(f"cannot evict {name}: {os.strerror(ctypes.get_errno())}")
        with open(name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("api", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--instructions")
    parser.add_argument("--cold", action="store_true")
    arguments = parser.parse_args()
    bundle = arguments.bundle.resolve()
    variables = {"KIVU_MODELS": str(bundle), "KIVU_AUTH__MODE": "none"}
    if arguments.instructions:
        variables["KIVU_INSTRUCTIONS"] = arguments.instructions
    with tempfile.TemporaryDirectory() as folder, Snapshot(arguments.api.resolve(), "api", variables, folder) as function:
        function.take(function.api.waiting)
        if arguments.cold:
            evict(function.process.pid, bundle)
        received, first_ms = function.restored(embed(TEXT))
        vector(received)
        found, times = mappings(function.process.pid, bundle), []
        for _ in range(50):
            began = time.monotonic()
            vector(function.next(embed(TEXT)))
            times.append((function.api.answered_at - began) * 1000)
    print(f"first response {first_ms:.1f} ms, later ones {statistics.median(times):.1f} ms")
    for name, _, size, in_memory in found:
        print(f"{Path(name).name}: {in_memory / 2**20:.1f} of {size / 2**20:.1f} MiB in memory")


if __name__ == "__main__":
    main()
