"""Limits a process to the memory and the CPU share of a Lambda function.

Needs root, cgroups of version 1, and only Python's standard library.
"""

import os
import uuid
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MB_A_CPU = 1769
PERIOD_US = 20_000


def is_possible():
    """Whether this process may create cgroups."""
    return os.access(CGROUPS / "memory/cgroup.procs", os.W_OK) and os.access(CGROUPS / "cpu/cgroup.procs", os.W_OK)


class Box:
    """The limits of a function with this memory size; `preexec_fn=box.enter` applies them to a process."""

    def __init__(self, megabytes):
        name = f"kivu-{uuid.uuid4()}"
        self.cpu, self.memory = CGROUPS / "cpu" / name, CGROUPS / "memory" / name
        for folder in (self.cpu, self.memory):
            folder.mkdir()
        (self.cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self.cpu / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * megabytes / MB_A_CPU)))
        # Other processes should not affect the measurement.
        (self.cpu / "cpu.shares").write_text("200000")
        self.bound(megabytes)

    def bound(self, megabytes):
        """Changes only the memory limit."""
        (self.memory / "memory.limit_in_bytes").write_text(str(int(megabytes * 1024 * 1024)))

    def enter(self):
        for folder in (self.cpu, self.memory):
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for folder in (self.cpu, self.memory):
            folder.rmdir()
