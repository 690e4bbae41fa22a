"""Writes measurements into the page: python3 tests/load/table.py FOLDER docs/reliability.md"""

import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benches"))
from page import write  # noqa: E402


def read(folder, name):
    path = folder / name
    return json.loads(path.read_text()) if path.is_file() else None


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def fuzzed(done):
    inputs, seconds, found = (sum(sums[name] for sums in done.values()) for name in ("inputs", "cpu_s", "found"))
    readers = [f"`{target}`" + (f" ({sums['found']})" if sums["found"] else "") for target, sums in sorted(done.items())]
    return [f"{inputs:,} inputs in {seconds / 60:.0f} CPU minutes, {found} failures: {', '.join(readers)}."]


def processors(found):
    # Vectors in the native engine are the same on all.
    translators = {}
    for its in found["rows"]:
        if "same" in its:
            translators.setdefault(its["processor"], {})[its["model"]] = its
    models = list(next(iter(translators.values())))
    lines = [row("processor", "`arithmetic` of `/info`", *models), row(*["---"] * (2 + len(models)))]
    for processor, by_model in translators.items():
        same = (f"{its['same']} of {its['of']}" for its in by_model.values())
        lines.append(row(processor, by_model[models[0]]["arithmetic"], *same))
    return lines


def main():
    folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name, lines in (("fuzz", fuzzed), ("processors", processors)):
        found = read(folder, f"{name}.json")
        if found is not None:
            write(page, name, "\n".join(lines(found)), folder / f"{name}.json")


if __name__ == "__main__":
    main()
