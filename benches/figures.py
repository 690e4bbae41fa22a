"""Draws the figures of bench.py, and writes tables of these and of those of search.py:

    python benches/figures.py bench.json search.json docs/pictures docs/benchmarks.md

Without one of the JSON files, its table and pictures stay.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plot
from page import write

PAPER, INK, KIVU, BASELINE = "#f3f6f6", "#16262a", "#0b727c", "#a9b6b9"
PARTS = [BASELINE, "#d08a2e", "#7a6aa8"]
STYLE = {
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER, "text.color": INK,
    "axes.edgecolor": BASELINE, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titlesize": 11, "font.size": 10,
    # The same figures make the same file.
    "svg.hashsalt": "kivu", "svg.fonttype": "path",
}


def save(picture, path):
    picture.savefig(path, metadata={"Date": None}, bbox_inches="tight", pad_inches=0.2)
    plot.close(picture)


def bars(axes, title, entries, decimals):
    names, values, colors = zip(*entries)
    drawn = axes.barh(names, values, color=colors, height=0.65)
    axes.bar_label(drawn, fmt=f"%.{decimals}f", padding=4)
    axes.set_title(title)
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.1)


def speed(figures, path):
    served, schedule = (figures[name] for name in ("32 texts of mixed length per request, 4 clients, tokenization included", "plain ONNX Runtime, best schedule"))
    latency, tensors = (figures[name] for name in ("one short text over HTTP, median", "the same over KServe v2 with binary tensors"))
    picture, (above, below) = plot.subplots(2, figsize=(7.5, 4.2), height_ratios=(3, 4), layout="constrained")
    bars(above, "Texts per second, mixed lengths (more is better)", [
        ("ONNX Runtime, batches of 32", schedule["baseline"], BASELINE),
        ("ONNX Runtime, best schedule", served["baseline"], BASELINE),
        ("Kivu over HTTP, from texts", served["value"], KIVU),
    ], 0)
    bars(below, "Milliseconds for one short text, median (less is better)", [
        ("ONNX Runtime", latency["baseline"], BASELINE),
        ("Kivu, JSON", latency["value"], KIVU),
        ("ONNX Runtime, measured again", tensors["baseline"], BASELINE),
        ("Kivu, KServe v2, binary tensors", tensors["value"], KIVU),
    ], 2)
    save(picture, path)


def cold_start(figures, path):
    start = figures["process start to first response"]
    picture, axes = plot.subplots(figsize=(7.5, 2.2), layout="constrained")
    left = 0.0
    for (name, value), color in zip(start["parts"].items(), PARTS):
        axes.barh(["ONNX Runtime"], [value], left=left, color=color, height=0.6, label=f"{name}: {value:.1f} ms")
        left += value
    axes.barh(["Kivu"], [start["value"]], color=KIVU, height=0.6, label="process, bundle, HTTP")
    for row, total in enumerate([left, start["value"]]):
        axes.text(total, row, f"  {total:.1f}", va="center")
    axes.set_title("Milliseconds from process start to first response, medians")
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.1)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=4, frameon=False, fontsize=8)
    save(picture, path)


def quality(precisions, path):
    picture, axes = plot.subplots(figsize=(7.5, 3), layout="constrained")
    for precision in precisions:
        axes.plot(precision["mb"], precision["cosine"], "o", color=KIVU, markersize=8)
        label = f"{precision['name']}: {precision['cosine']:.4f}, {precision['mb']:.1f} MB"
        align = "right" if precision["mb"] > 60 else "left"
        axes.annotate(label, (precision["mb"], precision["cosine"]), xytext=(0 if align == "right" else 9, -14), textcoords="offset points", ha=align)
    axes.set_title("Mean cosine similarity to fp32 by size of the bundle")
    axes.set_xlabel("MB")
    axes.set_xlim(left=0)
    axes.margins(y=0.25)
    axes.grid(axis="y", alpha=0.4)
    save(picture, path)


def number(value, unit):
    decimals = 0 if value >= 50 else 1 if value >= 2 else 2
    return f"{value:.{decimals}f} {unit}"


def table(figures, on_lambda=None):
    """With a column for the instructions `on_lambda`, if any."""
    columns = ["measurement", "Kivu", *([f"with `{on_lambda}`"] if on_lambda else []), "baseline", "ratio"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for figure in figures:
        value, baseline, unit = figure["value"], figure["baseline"], figure["unit"]
        limited, against, ratio = figure.get("on_lambda"), "", ""
        if baseline is not None:
            against = f"{number(baseline, unit)}: {figure['against']}"
            ratio = f"{value / baseline:.{1 if value / baseline >= 2 else 2}f} ×"
        limited = [number(limited, unit) if limited is not None else ""] if on_lambda else []
        lines.append(f"| {' | '.join([figure['name'], number(value, unit), *limited, against, ratio])} |")
    return "\n".join(lines)


def main():
    source, search, folder, page = map(pathlib.Path, sys.argv[1:])
    if source.exists():
        found = json.loads(source.read_text())
        figures = {figure["name"]: figure for figure in found["figures"]}
        folder.mkdir(parents=True, exist_ok=True)
        with plot.rc_context(STYLE):
            speed(figures, folder / "speed.svg")
            cold_start(figures, folder / "cold-start.svg")
            quality(found["precisions"], folder / "quality.svg")
        write(page, "bench", table(found["figures"], found["on_lambda"]), source)
    if search.exists():
        write(page, "search", table(json.loads(search.read_text())["figures"]), search)


if __name__ == "__main__":
    main()
