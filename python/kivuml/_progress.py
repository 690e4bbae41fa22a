"""Progress on standard error."""

import sys
import time

from ._texts import as_flag


class Progress:
    """Counts texts, on one line that is written again at most ten times a second."""

    def __init__(self, total, shown):
        self.total = total
        self.shown = as_flag(shown, "show_progress")
        self.done = 0
        self.began = self.written = time.monotonic()

    def advance(self, texts):
        self.done += texts
        now = time.monotonic()
        if self.shown and (now - self.written > 0.1 or self.done == self.total):
            self.written = now
            rate = self.done / max(now - self.began, 1e-9)
            end = "\n" if self.done == self.total else ""
            print(f"\r{self.done}/{self.total} texts, {rate:.0f} per second ", end=end, file=sys.stderr, flush=True)
