"""Runs every target for a while, and adds what was done to .kivu/reliability/fuzz.json: python3 fuzz/run.py SECONDS [TARGET ...]

What a target finds that it had not seen lies in fuzz/found; what breaks it, in fuzz/artifacts.
"""

import json
import pathlib
import re
import resource
import subprocess
import sys

FUZZ = pathlib.Path(__file__).parent
PROGRAMS = next(FUZZ.glob("target/*/release"), None)
DONE = FUZZ.parent / ".kivu/reliability/fuzz.json"
TARGETS = sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def run(target, seconds):
    found, artifacts = FUZZ / "found" / target, FUZZ / "artifacts" / target
    for folder in (found, artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        PROGRAMS / target, found, FUZZ / "corpus" / target, f"-max_total_time={seconds}", "-rss_limit_mb=2048",
        "-timeout=20", "-max_len=65536", "-print_final_stats=1", f"-artifact_prefix={artifacts}/",
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=FUZZ.parent)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = output.stdout.decode(errors="replace")
    number = lambda pattern: int((re.findall(pattern, log) or [0])[-1])
    (artifacts / "log").write_text(log)
    return {
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "inputs": number(r"number_of_executed_units: (\d+)") or number(r"#(\d+)"),
        "edges": number(r"cov: (\d+)"),
        "found": int(output.returncode != 0),
    }


def main():
    seconds, chosen = int(sys.argv[1]), sys.argv[2:] or TARGETS
    if PROGRAMS is None:
        sys.exit("expected the targets' programs, but found none; `make fuzz` builds them")
    failed = []
    for target in chosen:
        now = run(target, seconds)
        done = json.loads(DONE.read_text()) if DONE.is_file() else {}
        sums = done.setdefault(target, {"cpu_s": 0, "inputs": 0, "edges": 0, "found": 0})
        for name in ("cpu_s", "inputs", "found"):
            sums[name] = round(sums[name] + now[name], 1)
        sums["edges"] = max(sums["edges"], now["edges"])
        DONE.parent.mkdir(parents=True, exist_ok=True)
        DONE.write_text(json.dumps(done, indent=1) + "\n")
        print(target, json.dumps(now), flush=True)
        failed += [target] * now["found"]
    sys.exit(f"broken: {', '.join(failed)}; what broke them is in fuzz/artifacts" if failed else 0)


if __name__ == "__main__":
    main()
