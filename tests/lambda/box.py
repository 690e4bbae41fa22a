"""Limits a process to the memory and the CPU share of a Lambda function.

Needs root, cgroups of version 1, and only Python's standard library.
"""

import errno
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MB_A_CPU = 1769
PERIOD_US = 20_000


def is_possible():
    """Whether a process that needs more memory than its limit is killed here."""
    try:
        trial = Box(512)
    except OSError:
        return False
    try:
        trial.bound(64)
        process = subprocess.run([sys.executable, "-c", "bytes(range(256)) * 1_000_000"], preexec_fn=trial.enter, timeout=60)
        return process.returncode == -signal.SIGKILL
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        trial.remove()


class Box:
    """The limits of a function with this memory size; `preexec_fn=box.enter` applies them to a process."""

    def __init__(self, megabytes):
        name = f"kivu-{uuid.uuid4()}"
        self.cpu, self.memory = CGROUPS / "cpu" / name, CGROUPS / "memory" / name
        for folder in (self.cpu, self.memory):
            folder.mkdir()
        try:
            self.limit(megabytes)
        except OSError:
            self.remove()
            raise

    def limit(self, megabytes):
        (self.cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self.cpu / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * megabytes / MB_A_CPU)))
        # Other processes should not affect the measurement.
        (self.cpu / "cpu.shares").write_text("200000")
        self.bound(megabytes)

    def bound(self, megabytes):
        """Changes only the memory limit."""
        (self.memory / "memory.limit_in_bytes").write_text(str(int(megabytes * 1024 * 1024)))

    def bound_from(self, megabytes):
        """Sets the first limit from `megabytes` up that the memory in use allows: the kernel's own counts too."""
        while True:
            try:
                return self.bound(megabytes)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                megabytes += 4

    def enter(self):
        for folder in (self.cpu, self.memory):
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for folder in (self.cpu, self.memory):
            ends = time.monotonic() + 10
            while True:
                try:
                    folder.rmdir()
                    break
                except OSError as error:
                    # A process that was waited for may leave its cgroup a moment later.
                    if error.errno != errno.EBUSY or time.monotonic() > ends:
                        raise
                time.sleep(0.05)
