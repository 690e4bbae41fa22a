#!/usr/bin/env python3
"""Restores copies of the function `api` from one checkpoint, with CRIU.

    python tests/lambda/criu.py CRIU API BUNDLE [--restores 20]

A process with a runtime API and the function is checkpointed where the function asks for a restore; each copy then gets one
request. Request ids must differ and vectors must be equal. Needs root, and CRIU 4.2 or newer (Debian 12 has 3.17, which does
not know its kernels' vDSO); otherwise only Python's standard library.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from restores import Snapshot, embed, vector
from runtime_api import TIMEOUT_S, expect

OPTIONS = ("--tcp-established", "--ext-unix-sk", "--file-locks", "-v0")
HELD = "--held"


def hold(api, bundle, folder):
    """What is checkpointed: waits for the file `go`, and writes what the function answers."""
    with Snapshot(api, "api", {"KIVU_MODELS": bundle, "KIVU_AUTH__MODE": "none"}, folder) as function:
        function.take(function.api.waiting)
        (folder / "process").write_text(str(function.process.pid))
        (folder / "ready").touch()
        while not (folder / "go").exists():
            time.sleep(0.001)
        received, first_ms = function.restored(embed("a cat"))
        request_id = json.loads(received[2])["headers"]["x-request-id"]
        times = []
        for _ in range(20):
            began = time.monotonic()
            function.next(embed("a cat"))
            times.append((function.api.answered_at - began) * 1000)
        written = folder / "written"
        written.write_text(json.dumps([request_id, vector(received), first_ms, statistics.median(times)]))
        written.rename(folder / "answer")


def wait(what, is_over):
    deadline = time.monotonic() + TIMEOUT_S
    while not is_over():
        if time.monotonic() > deadline:
            sys.exit(f"expected {what} within {TIMEOUT_S} s, but found none")
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("criu", "api", "bundle"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--restores", type=int, default=20)
    arguments = parser.parse_args()
    criu, api, bundle = (path.resolve() for path in (arguments.criu, arguments.api, arguments.bundle))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, log = folder / "images", folder / "api.log"
        images.mkdir()
        with open(folder / "held.log", "wb") as output:
            held = subprocess.Popen(
                [sys.executable, "-B", __file__, HELD, api, bundle, folder], cwd=folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )
        wait("a function that asks for a restore", (folder / "ready").exists)
        subprocess.run([criu, "dump", "-t", str(held.pid), "-D", images, "--network-lock", "skip", *OPTIONS], check=True)
        held.wait()
        processes = (held.pid, (folder / "process").read_text())
        have_ended = lambda: not any(Path(f"/proc/{process}").exists() for process in processes)
        # Copies find their files as the first one left them.
        size, answers = log.stat().st_size, []
        for _ in range(arguments.restores):
            wait("the end of the last copy", have_ended)
            os.truncate(log, size)
            subprocess.run([criu, "restore", "-d", "-D", images, *OPTIONS], check=True)
            (folder / "go").touch()
            wait("an answer", (folder / "answer").exists)
            answers.append(json.loads((folder / "answer").read_text()))
            for file in ("go", "answer"):
                (folder / file).unlink()
        wait("the end of the last copy", have_ended)
    ids, vectors, first, warm = zip(*answers)
    expect("different request ids", len(set(ids)), arguments.restores)
    expect("different vectors", len({tuple(vector) for vector in vectors}), 1)
    print(f"{arguments.restores} restores: first response {statistics.median(first):.1f} ms, later ones {statistics.median(warm):.1f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == [HELD]:
        hold(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        main()
