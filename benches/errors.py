"""Draws where the error of 8-bit matrices comes from, measured by `laboratory errors`, and prints its table:

    python benches/errors.py errors.json errors.svg
"""

import json
import pathlib
import re
import sys

from figures import KIVU, PARTS, STYLE, plot, save

COLORS = [KIVU, *PARTS[1:], "#b5475d", "#4d8f4a", "#3b5b92"]
MARKERS = "osD^vP"


def projection(name):
    return re.sub(r"\.\d+\.", ".*.", name)


def draw(forms, path):
    projections = list(dict.fromkeys(projection(matrix["name"]) for matrix in forms[0]["matrices"]))
    picture, grid = plot.subplots(len(forms), 2, figsize=(7.5, 2.1 * len(forms)), sharex=True, sharey=True, layout="constrained")
    for row, form in zip(grid, forms):
        for axes, part in zip(row, ("weights", "activations")):
            for name, color, marker in zip(projections, COLORS, MARKERS):
                errors = [matrix[part] for matrix in form["matrices"] if projection(matrix["name"]) == name]
                axes.plot(range(1, len(errors) + 1), errors, marker, color=color, linestyle="-", linewidth=0.8, markersize=4, label=name)
            axes.set_yscale("log")
            axes.minorticks_off()
            axes.set_title(f"{form['form']}: {part}", fontsize=9)
            axes.grid(axis="y", alpha=0.4)
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    handles, labels = grid[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    picture.suptitle("Error of the text vector if a single matrix, or its input, is rounded: mean of 1 − cosine", fontsize=10)
    save(picture, path)


def table(forms):
    """Errors in millionths: of all matrices at once, and summed over the layers of each projection."""
    projections = list(forms[0]["projections"])
    names = [f"`{name.split('.*.')[-1]}`" for name in projections]
    lines = [f"| form | weights | activations | both | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for form in forms:
        errors = [form["all"][part] for part in ("weights", "activations", "both")]
        errors += [form["projections"][name]["both"] for name in projections]
        lines.append(f"| {form['form']} | {' | '.join(f'{error * 1e6:.0f}' for error in errors)} |")
    return "\n".join(lines)


def main():
    source, picture = map(pathlib.Path, sys.argv[1:])
    forms = json.loads(source.read_text())["forms"]
    with plot.rc_context(STYLE):
        draw(forms, picture)
    print(table(forms))


if __name__ == "__main__":
    main()
