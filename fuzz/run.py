"""Fuzzes every reader and adds the statistics to .kivu/reliability/fuzz.json.

    python3 fuzz/run.py SECONDS [READER ...]

SECONDS is CPU time per reader. New inputs are stored in fuzz/found, inputs that break a reader in fuzz/artifacts.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys

FUZZ = pathlib.Path(__file__).resolve().parent
PROGRAM = next(FUZZ.glob("target/*/release/any"), None)
DONE = FUZZ.parent / ".kivu/reliability/fuzz.json"
READERS = sorted(folder.name for folder in (FUZZ / "corpus").iterdir())


# The minimum remaining time for which the program is started.
MIN_S = 5
NOTHING = {"cpu_s": 0, "inputs": 0, "edges": 0, "found": 0}


def add(sums, now):
    """Adds counts; of the edges, takes the maximum."""
    return {name: max(sums[name], now[name]) if name == "edges" else round(sums[name] + now[name], 1) for name in sums}


def feed(reader, seconds):
    """Fuzzes a reader for this CPU time, or until an input breaks it."""
    sums = NOTHING
    while not sums["found"] and (left := int(seconds - sums["cpu_s"])) >= MIN_S:
        sums = add(sums, run(reader, left))
    return sums


def run(reader, seconds):
    """Fuzzes a reader for this wall-clock time."""
    found, artifacts = FUZZ / "found" / reader, FUZZ / "artifacts" / reader
    for folder in (found, artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        PROGRAM, found, FUZZ / "corpus" / reader, f"-max_total_time={seconds}", "-rss_limit_mb=2048",
        "-timeout=20", "-max_len=65536", "-print_final_stats=1", f"-artifact_prefix={artifacts}/",
    ]
    environment = {**os.environ, "READER": reader}
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=FUZZ.parent, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = output.stdout.decode(errors="replace")
    number = lambda pattern: int((re.findall(pattern, log) or [0])[-1])
    (artifacts / "log").write_text(log)
    return {
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "inputs": number(r"number_of_executed_units: (\d+)") or number(r"#(\d+)"),
        "edges": number(r"cov: (\d+)"),
        "found": int(output.returncode != 0),
    }


def main():
    seconds, chosen = int(sys.argv[1]), sys.argv[2:] or READERS
    if PROGRAM is None:
        sys.exit("expected the fuzz program, but found none; `make fuzz` builds it")
    failed = []
    for reader in chosen:
        now = feed(reader, seconds)
        done = json.loads(DONE.read_text()) if DONE.is_file() else {}
        done[reader] = add(done.get(reader, NOTHING), now)
        DONE.parent.mkdir(parents=True, exist_ok=True)
        DONE.write_text(json.dumps(done, indent=1) + "\n")
        print(reader, json.dumps(now), flush=True)
        failed += [reader] * now["found"]
    sys.exit(f"broken: {', '.join(failed)}; the inputs are in fuzz/artifacts" if failed else 0)


if __name__ == "__main__":
    main()
