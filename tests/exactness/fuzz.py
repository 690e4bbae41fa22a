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
import functools
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.dont_write_bytecode = True
import kinds
import mutations
import tensors
from compare import differences, is_finite
from processes import HERE, Kivu, Reference

FIXTURES = HERE.parent / "fixtures"
# Models, and the fixtures with files that replace theirs.
OTHERS = [("tiny-qwen3-rank", "logit-score"), ("tiny-nomic", "nomic-native")]
# Kivu's engines; some models have only the first.
ENGINES = ["auto", "onnx"]
# Times that weights are rounded otherwise, to see how much that changes results.
NUDGES = 5
PROGRESS_S = 30


class Comparison:
    """Compares models in Kivu and in the references."""

    def __init__(self, program, home, references, scratch):
        self.kivu, self.references = Kivu(program, home, scratch / "bundle"), references
        self.scratch = scratch
        # Results that were compared in double precision.
        self.rounded = 0

    def folder(self, source, files):
        """A copy of a fixture with changed files, called as its repository: templates belong to such names."""
        folder = self.scratch / "model" / source.name.removeprefix("tiny-")
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(source, folder)
        for name, content in files.items():
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
        return folder

    def outcome(self, source, files, kind, usable, engine):
        """The outcome of a case, and what belongs to it."""
        try:
            return self.compared(source, files, kind, usable, engine)
        except Exception:  # an answer in an unknown form
            return "BROKEN", {"comparison": traceback.format_exc(limit=-3)}

    def compared(self, source, files, kind, usable, engine):
        folder = self.folder(source, files)
        found = self.kivu.run(folder, kind, source.name, engine)
        if "refused" in found and engine != ENGINES[0]:
            found = self.kivu.run(folder, kind, source.name)
        if "values" not in found:
            return ("refused" if "refused" in found else "BROKEN"), found
        details = {}
        for reference in usable:
            detail = self.detail(reference, found["values"], (folder, kind, source.name))
            if detail is None:
                differs = any(isinstance(other, dict) for other in details.values())
                return (f"equal to {reference.name} only" if differs else "equal"), details
            details[reference.name] = detail
        differs = any(isinstance(detail, dict) for detail in details.values())
        return ("DIFFERS" if differs else "reference fails"), details

    def detail(self, reference, found, case):
        """What differs by name, or why the values cannot be compared; nothing if they are equal."""
        expected = reference.run(*case)
        if "values" not in expected or not is_finite(expected["values"]):
            return expected.get("failed") or expected.get("ended") or "values that are not finite"
        expected = expected["values"]
        differing = differences(found, expected)
        if not differing:
            return None
        again = reference.run(*case, seed=1)
        if "values" in again and differences(again["values"], expected):
            return "random values"
        if self.is_rounding(reference, found, expected, case):
            self.rounded += 1
            return None
        return {name: shown(by, found, expected, name) for name, by in differing.items()}

    def is_rounding(self, reference, found, expected, case):
        """Whether results differ no more than by rounding: in the reference, or of the weights' last bits."""
        folder, *names = case
        weights = {path: path.read_bytes() for path in folder.rglob("*.safetensors")}
        answers = [reference.run(*case, precision="float64")]
        for seed in range(NUDGES):
            for path, data in weights.items():
                path.write_bytes(tensors.nudged(data, random.Random(seed)))
            answers.append(reference.run(folder, *names, precision="float64"))
        for path, data in weights.items():
            path.write_bytes(data)
        exact, *others = [answer.get("values") for answer in answers]
        are_known = all(values is not None and is_finite(values) for values in (exact, *others))
        return are_known and not differences(found, expected, exact, others)

    def usable(self, source, kind):
        """The references that have the values of Kivu for an unchanged fixture, and why others have not."""
        folder = self.folder(source, {})
        found = self.kivu.run(folder, kind, source.name)
        if "values" not in found:
            return [], found
        details = {
            reference.name: self.detail(reference, found["values"], (folder, kind, source.name))
            for reference in self.references
        }
        return [reference for reference in self.references if details[reference.name] is None], details


def shown(by, found, expected, name):
    return [by, json.dumps(found[name])[:300], json.dumps(expected[name])[:300]]


class Fixture:
    """A model, which is compared with the references before its first case."""

    def __init__(self, folder, kind, comparison):
        self.folder, self.kind, self.comparison = folder, kind, comparison

    @functools.cached_property
    def usable(self):
        usable, details = self.comparison.usable(self.folder, self.kind)
        for name in details.keys() - {reference.name for reference in usable}:
            print(f"  {self.folder.name} ({self.kind}), {name}: {json.dumps(details[name])[:300]}", flush=True)
        return usable

    @functools.cached_property
    def declarations(self):
        return [reference.declared(str(self.folder)) for reference in self.usable]


def decoder_classifier(base, folder):
    """A decoder with the label head of the goldens."""
    patches = json.loads((FIXTURES / "goldens/corners.json").read_text())["classifier"]["patches"]
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("1_Pooling", *(name for name in patches if not patches[name])))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | patches["config.json"]))
    weights = folder / "model.safetensors"
    body = {f"model.{name}": tensor for name, tensor in tensors.read(weights.read_bytes()).items()}
    head = tensors.read((FIXTURES / "corners/score.safetensors").read_bytes())
    weights.write_bytes(tensors.write(body | head))
    return folder


def all_fixtures(comparison):
    """The models, and models with files of other fixtures."""
    folders = {folder.name: folder for folder in sorted((FIXTURES / "models").iterdir())}
    others = [(folders["tiny-bert"], modules) for modules in sorted((FIXTURES / "modules").iterdir())]
    others += [(folders[name], FIXTURES / files) for name, files in OTHERS]
    for base, files in others:
        folder = comparison.scratch / f"{base.name}-{files.name}"
        replaced = ["1_Pooling"] if (files / "modules.json").is_file() else []
        shutil.copytree(base, folder, ignore=shutil.ignore_patterns(*replaced))
        folders[folder.name] = shutil.copytree(files, folder, dirs_exist_ok=True)
    folders["tiny-qwen3-padding"] = decoder_classifier(folders["tiny-qwen3"], comparison.scratch / "tiny-qwen3-padding")
    with_kinds = [(name, folder, kinds.kind_of(folder)) for name, folder in folders.items()]
    return {name: Fixture(folder, kind, comparison) for name, folder, kind in with_kinds if kind}


def case(fixture, seed, number, ways=None):
    """The change of a case, which depends on nothing but the seed, the number and the ways to change."""
    mutator = mutations.Mutator(fixture.folder, fixture.declarations, random.Random(f"{seed} {number}"))
    is_generator = fixture.kind == "generator"
    while True:
        change = mutator.change(ways or (mutations.GENERATION if is_generator else mutations.ENCODERS))
        # Kivu splits texts beyond it; `generate` ignores it.
        is_ignored = is_generator and "model_max_length" in change.text
        # The only reference for these is version 5 of `transformers`, which does not read all of the file.
        is_newer = fixture.kind == "multi-vector" or fixture.folder.name in kinds.JINA_V5
        is_ignored |= is_newer and "tokenizer.json" in change.files
        if not is_ignored:
            return change


def engine_of(seed, number):
    return random.Random(f"engine {seed} {number}").choice(ENGINES)


def stored(folder, fixture, change, engine, found, identity):
    folder.mkdir(exist_ok=True)
    outcome, details = found
    files = {name: content and base64.b64encode(content).decode() for name, content in change.files.items()}
    record = {
        "fixture": fixture.folder.name, "change": change.text, "engine": engine, "outcome": outcome, "details": details,
        "files": files,
    }  # fmt: skip
    path = folder / f"{fixture.folder.name}-{identity}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def fuzz(options, comparison):
    seed = options.seed if options.seed is not None else int(time.time())
    print(f"seed {seed}", flush=True)
    models = [
        fixture for name, fixture in all_fixtures(comparison).items()
        if (not options.kind or fixture.kind in options.kind) and (not options.fixture or name in options.fixture)
    ]
    print(f"{len(models)} fixtures", flush=True)
    counts, finds = collections.Counter(), 0
    end, next_report = time.monotonic() + 60 * options.minutes, time.monotonic() + PROGRESS_S
    number = options.first
    while number < options.first + options.cases and time.monotonic() < end:
        fixture = models[number % len(models)]
        number += 1
        if not fixture.usable:
            continue
        change = case(fixture, seed, number - 1, options.change)
        engine = engine_of(seed, number - 1)
        found = comparison.outcome(fixture.folder, change.files, fixture.kind, fixture.usable, engine)
        outcome, _ = found
        counts["generation" if fixture.kind == "generator" else "encoders", outcome] += 1
        if outcome in ("DIFFERS", "BROKEN") or "only" in outcome:
            path = stored(options.environments / "finds", fixture, change, engine, found, f"{seed}-{number - 1}")
            print(f"{outcome}: {fixture.folder.name}: {change.text}\n    {path}", flush=True)
            finds += outcome in ("DIFFERS", "BROKEN")
        if time.monotonic() > next_report:
            next_report += PROGRESS_S
            print(f"{summary(counts)}; next {number}", flush=True)
    print(f"seed {seed}, from {options.first} to before {number}, {counts.total()} cases\n{summary(counts)}; {comparison.rounded} in double precision")
    return finds


def summary(counts):
    return "; ".join(f"{kind} {outcome} {count}" for (kind, outcome), count in sorted(counts.items()))


def replay(options, comparison):
    finds, known = 0, all_fixtures(comparison)
    for path in options.replay:
        record = json.loads(path.read_text())
        fixture = known[record["fixture"]]
        files = {name: content and base64.b64decode(content) for name, content in record["files"].items()}
        engine = record.get("engine", ENGINES[0])
        outcome, details = comparison.outcome(fixture.folder, files, fixture.kind, fixture.usable, engine)
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
    parser.add_argument("--change", action="append", choices=sorted({*mutations.ENCODERS, *mutations.GENERATION}))
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
