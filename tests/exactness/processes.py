"""The processes of a comparison: Kivu, and one for each version of the references. Each answers lines of JSON."""

import json
import os
import select
import subprocess
from pathlib import Path

import kinds

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 120


class Process:
    """A process that is started again after it ended or did not answer in time."""

    def __init__(self, command):
        self.command, self.process = command, None

    def ask(self, request):
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "KIVU_LOG": "off"},
            )
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            is_ready = select.select([self.process.stdout], [], [], TIMEOUT_S)[0]
            line = self.process.stdout.readline() if is_ready else b""
        except BrokenPipeError:
            line, is_ready = b"", True
        try:
            return json.loads(line)
        except ValueError:
            self.stop()
        reason = f"unreadable answer {line[:200]}" if line else "the process ended"
        return {"ended": reason if is_ready else f"no answer in {TIMEOUT_S} s"}

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Kivu:
    """Builds and serves models in one process."""

    def __init__(self, program, home, out):
        self.process, self.out = Process([program, home]), out

    def run(self, folder, kind, name, engine="auto"):
        """`values` by name, in which nothing is a refused request; or `refused`, or `broken`."""
        request = {"folder": str(folder), "out": str(self.out), "task": kinds.task(kind, name), "engine": engine}
        answer = self.process.ask({**request, "requests": kinds.requests(kind, name)})
        if "refused" in answer:
            return {"refused": answer["refused"]}
        if "answers" not in answer:
            return {"broken": json.dumps(answer)}
        bad = [entry for entry in answer["answers"] if entry["status"] >= 500]
        if bad:
            return {"broken": json.dumps(bad[0])}
        bodies = [entry["body"] if entry["status"] == 200 else None for entry in answer["answers"]]
        if all(body is None for body in bodies):
            return {"refused": json.dumps(answer["answers"][0]["body"])}
        return {"values": kinds.values(kind, bodies)}


class Reference:
    """One version of the reference libraries."""

    def __init__(self, environment):
        self.name = environment.name
        self.process = Process([environment / "bin/python", HERE / "reference.py"])

    def run(self, folder, kind, name, seed=0, precision="float32"):
        return self.process.ask({"run": str(folder), "kind": kind, "name": name, "seed": seed, "precision": precision})

    def declared(self, folder):
        return self.process.ask({"declared": str(folder)})
