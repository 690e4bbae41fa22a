"""Writes measurements into the page: python3 tests/load/table.py FOLDER docs/reliability.md"""

import json
import pathlib
import re
import sys


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
    lines = [row("processor", "model", "`arithmetic` of `/info`", "identical to the first"), row(*["---"] * 4)]
    # Vectors in the native engine are the same on all.
    translators = (result for result in found["rows"] if "same" in result)
    return lines + [row(its["processor"], its["model"], its["arithmetic"], f"{its['same']} of {its['of']}") for its in translators]


def main():
    folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = page.read_text()
    for name, write in (("fuzz", fuzzed), ("processors", processors)):
        found = read(folder, f"{name}.json")
        if found is not None:
            table = "\n".join(write(found))
            text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda marks: f"{marks[1]}{table}\n{marks[2]}", text, flags=re.DOTALL)
    page.write_text(text)


if __name__ == "__main__":
    main()
