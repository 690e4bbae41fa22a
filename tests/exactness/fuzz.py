#!/usr/bin/env python3
"""Holds Kivu against `transformers` and sentence-transformers on changed models.

    python3 tests/exactness/fuzz.py PROGRAM HOME ENVIRONMENTS [--seed N] [--cases N] [--minutes N] [--kind KIND]
    python3 tests/exactness/fuzz.py PROGRAM HOME ENVIRONMENTS --replay FILE ...

PROGRAM is the benchmark `exactness`, HOME has ONNX Runtime, and ENVIRONMENTS the folders `new` and `old`, Python
environments with two versions of the references. A case is a fixture with one change of a key, value, class, tensor or
file. Kivu must refuse it, or return the values of a reference, unless the references fail too. Other cases are silent
differences: they are written to ENVIRONMENTS/finds, and the exit status is 1.
"""

import argparse
import base64
import collections
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True
import kinds
import mutations
from compare import differences, is_finite
from processes import HERE, Kivu, Reference

MODELS = HERE.parent / "fixtures/models"
PROGRESS_S = 30


class Comparison:
    """Compares models in Kivu and in the references."""

    def __init__(self, program, home, references, scratch):
        self.kivu, self.references = Kivu(program, home, scratch / "bundle"), references
        self.scratch = scratch

    def folder(self, source, files):
        """A copy of a fixture with changed files."""
        folder = self.scratch / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder, copy_function=link)
        for name, content in files.items():
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
        return folder

    def outcome(self, source, files, kind, usable):
        """The outcome of a case, and what belongs to it."""
        folder = self.folder(source, files)
        found = self.kivu.run(folder, kind, source.name)
        if "values" not in found:
            return ("refused" if "refused" in found else "BROKEN"), found
        details = {}
        for reference in usable:
            expected = reference.run(folder, kind, source.name)
            if "values" not in expected or not is_finite(expected["values"]):
                details[reference.name] = expected.get("failed") or expected.get("ended") or "values that are not finite"
                continue
            differing = differences(found["values"], expected["values"])
            if not differing:
                return ("equal" if reference is usable[0] or not isinstance(details.get(usable[0].name), dict)
                        else f"equal to {reference.name} only"), details
            again = reference.run(folder, kind, source.name, seed=1)
            if "values" in again and differences(again["values"], expected["values"]):
                details[reference.name] = "random values"
                continue
            details[reference.name] = {name: shown(by, found["values"], expected["values"], name) for name, by in differing.items()}
        differ = [name for name, detail in details.items() if isinstance(detail, dict)]
        return ("DIFFERS" if differ else "reference fails"), details


def shown(by, found, expected, name):
    return [by, json.dumps(found[name])[:300], json.dumps(expected[name])[:300]]


def link(source, target):
    Path(target).symlink_to(Path(source).resolve())


class Fixture:
    def __init__(self, folder, kind, comparison):
        self.folder, self.kind = folder, kind
        self.usable = []
        for reference in comparison.references:
            outcome, details = comparison.outcome(folder, {}, kind, [reference])
            if outcome == "equal":
                self.usable.append(reference)
            else:
                print(f"  {folder.name} ({kind}), {reference.name}: {outcome} {json.dumps(details)[:300]}", flush=True)
        self.declarations = [reference.declared(str(folder)) for reference in self.usable]


def fixtures(comparison, selected, names):
    found = []
    for folder in sorted(MODELS.iterdir()):
        kind = kinds.kind_of(folder)
        if kind and (not selected or kind in selected) and (not names or folder.name in names):
            fixture = Fixture(folder, kind, comparison)
            found += [fixture] if fixture.usable else []
    return found


def case(fixture, seed, number):
    """The change of a case, which depends on nothing but the seed and the number."""
    mutator = mutations.Mutator(fixture.folder, fixture.declarations, random.Random(f"{seed} {number}"))
    if fixture.kind != "generator":
        return mutator.change(mutations.ENCODERS)
    while True:
        change = mutator.change(mutations.GENERATION)
        # Kivu splits texts beyond it; `generate` ignores it.
        if "model_max_length" not in change.text:
            return change


def stored(folder, fixture, change, outcome, details, identity):
    folder.mkdir(exist_ok=True)
    files = {name: content and base64.b64encode(content).decode() for name, content in change.files.items()}
    record = {"fixture": fixture.folder.name, "change": change.text, "outcome": outcome, "details": details, "files": files}
    path = folder / f"{fixture.folder.name}-{identity}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def fuzz(options, comparison):
    seed = options.seed if options.seed is not None else int(time.time())
    print(f"seed {seed}", flush=True)
    models = fixtures(comparison, options.kind, options.fixture)
    print(f"{len(models)} fixtures", flush=True)
    counts, finds = collections.Counter(), 0
    end, next_report = time.monotonic() + 60 * options.minutes, time.monotonic() + PROGRESS_S
    number = options.first
    while number < options.first + options.cases and time.monotonic() < end:
        fixture = models[number % len(models)]
        change = case(fixture, seed, number)
        outcome, details = comparison.outcome(fixture.folder, change.files, fixture.kind, fixture.usable)
        counts["generation" if fixture.kind == "generator" else "encoders", outcome] += 1
        if outcome in ("DIFFERS", "BROKEN") or "only" in outcome:
            path = stored(options.environments / "finds", fixture, change, outcome, details, f"{seed}-{number}")
            print(f"{outcome}: {fixture.folder.name}: {change.text}\n    {path}", flush=True)
            finds += outcome in ("DIFFERS", "BROKEN")
        number += 1
        if time.monotonic() > next_report:
            next_report += PROGRESS_S
            print(summary(counts), flush=True)
    print(f"seed {seed}, {number - options.first} cases\n{summary(counts)}")
    return finds


def summary(counts):
    return "; ".join(f"{kind} {outcome} {count}" for (kind, outcome), count in sorted(counts.items()))


def replay(options, comparison):
    finds = 0
    for path in options.replay:
        record = json.loads(path.read_text())
        folder = MODELS / record["fixture"]
        files = {name: content and base64.b64decode(content) for name, content in record["files"].items()}
        kind = kinds.kind_of(folder)
        usable = [
            reference for reference in comparison.references
            if comparison.outcome(folder, {}, kind, [reference])[0] == "equal"
        ]
        outcome, details = comparison.outcome(folder, files, kind, usable)
        print(f"{outcome}: {record['fixture']}: {record['change']}\n    {json.dumps(details, ensure_ascii=False)[:1500]}", flush=True)
        finds += outcome in ("DIFFERS", "BROKEN")
    return finds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "home", "environments"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kind", action="append")
    parser.add_argument("--fixture", action="append")
    parser.add_argument("--replay", type=Path, nargs="+")
    options = parser.parse_args()
    references = [Reference(options.environments / name) for name in ("new", "old")]
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        comparison = Comparison(options.program, options.home, references, Path(scratch))
        finds = replay(options, comparison) if options.replay else fuzz(options, comparison)
    for process in [comparison.kivu.process, *(reference.process for reference in references)]:
        process.stop()
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
