#!/usr/bin/env python3
"""Records the duration of the steps of a test run, and the CPU time of their processes.

    tests/timed.py FILE STEP -- COMMAND...   runs the command, and appends the step with its seconds to FILE
    tests/timed.py FILE                      prints the steps of FILE as a table, and the last lines of those that failed

At the time TEST_DEADLINE, in seconds since 1970, a command and its processes are stopped and listed.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

# Of a step that failed, repeated after the table: a log that is cut in its middle still has them.
LAST_LINES = 120


def run(file, step, command):
    started, clock = time.time(), time.monotonic()
    # The command must not take part in the jobs of the surrounding `make`.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    limit = max(float(environment["TEST_DEADLINE"]) - started, 0) if "TEST_DEADLINE" in environment else None
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    last = deque(maxlen=LAST_LINES)
    copier = threading.Thread(target=copy, args=(process.stdout, last), daemon=True)
    copier.start()
    try:
        status = process.wait(limit)
        result = "passed" if status == 0 else f"failed ({status})"
    except subprocess.TimeoutExpired:
        subprocess.run(["ps", "-s", str(process.pid), "-o", "pid,etimes,time,args"])
        status, result = 1, "stopped: out of time"
    finally:
        # Nothing is left after Ctrl-C, or if the command has ended without its processes.
        kill_group(process)
        copier.join(10)
    if status:
        failure(file, step).write_bytes(b"".join(last))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with file.open("a") as table:
        cpu = used.ru_utime + used.ru_stime
        table.write(f"{started:.1f}\t{time.monotonic() - clock:.1f}\t{cpu:.1f}\t{step}\t{result}\n")
    return 1 if status else 0


def copy(output, last):
    for line in output:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        last.append(line)


def failure(file, step):
    """The file with the last lines of a step that failed."""
    return file.with_name(f"{file.name}.{step}")


def kill_group(leader):
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    leader.wait()


def show(file):
    rows = [line.split("\t") for line in file.read_text().splitlines()] if file.exists() else []
    if not rows:
        return
    first = min(float(started) for started, *_ in rows)
    print(f"\n{'step':20} {'begins':>8} {'seconds':>8} {'CPU':>8}")
    for started, seconds, cpu, step, result in sorted(rows):
        print(f"{step:20} {float(started) - first:8.0f} {float(seconds):8.0f} {float(cpu):8.0f}  {result}")
    total = max(float(started) + float(seconds) for started, seconds, *_ in rows) - first
    print(f"{'all':20} {'':8} {total:8.0f} {sum(float(cpu) for _, _, cpu, *_ in rows):8.0f}")
    for *_, step, result in sorted(rows):
        if result != "passed":
            print(f"\n{step} {result}; its last lines:\n{failure(file, step).read_text(errors='replace')}")


def main():
    file = Path(sys.argv[1])
    if len(sys.argv) == 2:
        show(file)
        return 0
    return run(file, sys.argv[2], sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
