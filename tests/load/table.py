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
    lines = [row("reader", "inputs", "CPU minutes", "edges", "failures"), row(*["---"] * 5)]
    for target, sums in sorted(done.items()):
        lines.append(row(f"`{target}`", f"{sums['inputs']:,}", f"{sums['cpu_s'] / 60:.1f}", sums["edges"], sums["found"]))
    inputs, seconds = (sum(sums[name] for sums in done.values()) for name in ("inputs", "cpu_s"))
    return [*lines, row("all", f"{inputs:,}", f"{seconds / 60:.0f}", "", sum(sums["found"] for sums in done.values()))]


def loaded(found):
    lines = [row("traffic", "200 per second", "p99", "429 per second", "p99", "memory before, peak, after", "open files, peak, after"), row(*["---"] * 7)]
    for name in ("steady", "ten times", "burst", "slow clients", "oversized"):
        result = found[name]
        sent = result.get("others", result)
        cells = []
        for status in ("200", "429"):
            responses = sent.get(status)
            cells += [responses["per_second"], f"{responses['p99_ms']} ms"] if responses else ["", ""]
        cells.append(f"{result['resident_mb_before']}, {result['resident_mb_peak']}, {result['resident_mb_after']} MB")
        cells.append(f"{result['open_files_peak']}, {result['open_files_after']}")
        lines.append(row(name, *cells))
    slow, large, mixed = found["slow clients"], found["oversized"], found["mixed"]
    return [
        *lines, "",
        f"Limit of {found['limit']} concurrent requests, {found['processors']} processors shared with the clients. "
        f"Of {slow['connections']} slow clients, {slow['closed_by_the_server']} were disconnected. "
        f"{large['bodies']} bodies of {large['megabytes']} MB got {json.dumps(large['statuses'])}. "
        f"Mixed for {mixed['seconds']} s: {mixed['requests']:,} requests, {json.dumps(mixed['statuses'])}. "
        f"{sum(result.get('others', result).get('lost', 0) for result in found.values() if isinstance(result, dict)):,} requests got no response. "
        + ended(found),
    ]


def ended(found):
    failures = found["failures"]
    checks = f"Failed checks: {', '.join(failures)}." if failures else "All checks passed."
    return f"Shutdown took {found['shutdown_s']} s. {checks}"


def soaked(found):
    soak = found["soak"]
    return [
        f"{soak['seconds']} s of mixed traffic: {soak['requests']:,} requests ({json.dumps(soak['statuses'])}), "
        f"{soak['slow_clients']:,} slow clients, {soak['large_bodies']:,} oversized bodies. "
        f"From the second to the last quarter, memory grew by {soak['resident_mb_growth']} MB of "
        f"{soak['resident_mb_before']} and open files by {soak['open_files_growth']:.0f}; "
        f"afterwards there were {soak['open_files_after']}. {soak['lost']:,} requests got no response. " + ended(found),
    ]


def processors(found):
    lines = [row("processor", "model", "`arithmetic` of `/info`", "cosine to fp32: mean, worst", "cosine to the first processor: mean, worst"), row(*["---"] * 5)]
    for result in found["rows"]:
        arithmetic = result["arithmetic"] or ""
        if "to_fp32" in result:
            cells = [f"{cosine['mean']:.4f}, {cosine['worst']:.4f}" for cosine in (result["to_fp32"], result["to_reference"])]
        else:
            cells = ["", f"{result['same']} of {result['of']} translations identical"]
        lines.append(row(result["processor"], result["model"], arithmetic, *cells))
    return [*lines, "", f"{found['texts']} texts of `compiler/src/sentences.txt`; fp32 on the first processor."]


def main():
    folder, page = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    text = page.read_text()
    for name, write in (("fuzz", fuzzed), ("load", loaded), ("soak", soaked), ("processors", processors)):
        found = read(folder, f"{name}.json")
        if found is not None:
            table = "\n".join(write(found))
            text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda marks: f"{marks[1]}{table}\n{marks[2]}", text, flags=re.DOTALL)
    page.write_text(text)


if __name__ == "__main__":
    main()
