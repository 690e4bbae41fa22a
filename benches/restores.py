#!/usr/bin/env python3
"""Measures how a deployed function starts: restored from a snapshot, initialized, or warm; prints a table in Markdown.

    .kivu/deploy/bin/python benches/restores.py FUNCTION:live [--event FILE] [--at-once 10] [--rounds 3]

Sends requests at once, so that Lambda starts as many environments, then again, so that some are warm. Lambda's own report
of each request has the times; `client` is the time of the whole call from this machine. A function that was idle for some
20 minutes, or was just published, has no warm environments. Needs `lambda:InvokeFunction`, the variables of AWS's SDK, and
the packages of tests/deploy/requirements.txt. Each start costs what docs/sizing.md says.
"""

import argparse
import base64
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from botocore.config import Config

EVENT = Path(__file__).resolve().parents[1] / "tests/lambda/http_plain.json"
# Fields of Lambda's report, by how the environment started.
STARTS = {"restored": "restoreDurationMs", "initialized": "initDurationMs"}


def report(log):
    """The metrics in the last lines of a log in JSON."""
    for line in reversed(log.splitlines()):
        if '"platform.report"' in line:
            return json.loads(line)["record"]["metrics"]
    raise SystemExit("error: expected a line `platform.report` in the log, but found none; the function needs LogFormat JSON")


def invoke(client, function, event):
    """How the environment started, and the ms of its start, of the function, and of the call."""
    started = time.perf_counter()
    answer = client.invoke(FunctionName=function, Payload=event, LogType="Tail")
    call = 1000 * (time.perf_counter() - started)
    body = answer["Payload"].read()
    if "FunctionError" in answer or json.loads(body).get("statusCode") not in (200, 401):
        raise SystemExit(f"error: expected status 200 or 401, but found {body[:200]}")
    metrics = report(base64.b64decode(answer["LogResult"]).decode())
    start = next((name for name, field in STARTS.items() if field in metrics), "warm")
    return start, metrics.get(STARTS.get(start), 0), metrics["durationMs"], call, metrics["maxMemoryUsedMB"]


def table(results):
    lines = ["| start | requests | start, ms: median, max | function, ms: median, max | client, ms: median, max | memory, MB |", "|---|---|---|---|---|---|"]
    for name in (*STARTS, "warm"):
        found = list(zip(*(result[1:] for result in results if result[0] == name)))
        if found:
            times = " | ".join(f"{statistics.median(each):.1f}, {max(each):.1f}" for each in found[:3])
            lines.append(f"| {name} | {len(found[0])} | {times} | {max(found[3])} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("function", help="the function's name with its alias; only versions have snapshots")
    parser.add_argument("--event", type=Path, default=EVENT, help="an API Gateway event; 401 is accepted, since the default has no key")
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    client = boto3.client("lambda", config=Config(max_pool_connections=arguments.at_once, read_timeout=120, retries={"max_attempts": 0}))
    event, results = arguments.event.read_bytes(), []
    with ThreadPoolExecutor(arguments.at_once) as threads:
        for _ in range(arguments.rounds):
            results += threads.map(lambda _: invoke(client, arguments.function, event), range(arguments.at_once))
    print(table(results))


if __name__ == "__main__":
    sys.exit(main())
