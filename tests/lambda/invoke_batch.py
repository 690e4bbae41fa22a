#!/usr/bin/env python3
"""Sends every form of event to the function `batch` under the Lambda emulator, with files in a real S3 server.

    python tests/lambda/invoke_batch.py CARGO_LAMBDA [--port 9000] [--env KEY=VALUE]... [--release]

It starts `CARGO_LAMBDA lambda watch` and SeaweedFS, uploads a file for each event, and checks the response and the
output file. It prints one line per event. The exit status is 0, or 1 after printing the problems. Needs the packages
of tests/s3/requirements.txt.
"""

import json
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "s3"))

from harness import BUCKET, CREDENTIALS, Weed, event_bridge, s3_event, sns, sns_in_queue, sqs
from invoke import ANSWER_S, FIRST_ANSWER_S, WIDTH, Emulator, Failure, option_parser, parse_options

ROWS = [{"id": number, "text": f"text {number}"} for number in range(3)]
DONE, ACKNOWLEDGED = {"status": "done"}, {"batchItemFailures": []}
S3_TEST = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": BUCKET, "RequestId": "1", "HostId": "2"}


def url(key):
    return f"s3://{BUCKET}/{key}"


# Name, the event for a file, the expected response, and whether an output file follows.
EVENTS = (
    ("s3_put", s3_event, DONE, True),
    ("s3_test", lambda *_: S3_TEST, DONE, False),
    ("event_bridge", event_bridge, DONE, True),
    ("sqs_of_s3", lambda *about: sqs(s3_event(*about)), ACKNOWLEDGED, True),
    ("sqs_of_event_bridge", lambda *about: sqs(event_bridge(*about)), ACKNOWLEDGED, True),
    ("sqs_of_sns", lambda *about: sqs(sns_in_queue(s3_event(*about))), ACKNOWLEDGED, True),
    ("sqs_of_s3_test", lambda *_: sqs(S3_TEST), ACKNOWLEDGED, False),
    ("sqs_of_nonsense", lambda *_: sqs("no event"), {"batchItemFailures": [{"itemIdentifier": "message-0"}]}, False),
    ("sns", lambda *about: sns(s3_event(*about)), DONE, True),
    ("by_hand", lambda key, _: {"input": url(key)}, {"status": "finished", "rows": 3}, True),
    # The file has too few rows for ranges.
    ("states_index", lambda key, _: {"index": {"input": url(key), "run": "run", "rows": 1}}, {"ranges": 0}, False),
    ("states_files", lambda key, _: {"BatchInput": {"bucket": BUCKET}, "Items": [{"Key": key}]}, [{"status": "finished"}], True),
    ("scheduled", lambda *_: {"detail-type": "Scheduled Event", "source": "aws.events", "detail": {}}, DONE, False),
    ("nonsense", lambda *_: {"what": "is this"}, {"errorType": "Kivu.Failed"}, False),
)


def main():
    options = parse_options(option_parser(__doc__.split("\n")[0]))
    problems = []
    try:
        weed = Weed()
        try:
            options.env += [f"{name}={value}" for name, value in CREDENTIALS.items()]
            options.env.append(f"AWS_ENDPOINT_URL={weed.endpoint}")
            with Emulator(options) as emulator:
                problems = send_all(emulator, weed)
        finally:
            weed.stop()
    except Failure as failure:
        problems = [str(failure)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{len(EVENTS)} events done as expected")
    return 1 if problems else 0


def send_all(emulator, weed):
    """Sends every event and returns the problems of responses and output files."""
    problems = []
    timeout_s = FIRST_ANSWER_S
    for name, event, expected, has_answers in EVENTS:
        key = f"in/{name}.jsonl"
        etag = weed.put(key, "".join(json.dumps(row) + "\n" for row in ROWS).encode())["ETag"]
        started = time.monotonic()
        status, body = emulator.exchange(event(key, etag), timeout_s, "batch")
        timeout_s = ANSWER_S
        print(f"{name:20} {status}  {body[:100]!r}  {(time.monotonic() - started) * 1000:.0f} ms", flush=True)
        # The emulator's status shows whether the handler failed.
        if (status == 200) != ("errorType" not in expected) or not is_part(expected, json.loads(body)):
            problems.append(f"{name}: expected {expected}, but found {status}: {body[:300]}")
        problems += [f"{name}: {problem}" for problem in answers(weed, f"out/{name}.jsonl") if has_answers]
    return problems


def is_part(expected, found):
    """Whether `found` contains everything in `expected`."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(name in found and is_part(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list) and len(expected) == 1:
        return isinstance(found, list) and len(found) == 1 and is_part(expected[0], found[0])
    return expected == found


def answers(weed, key):
    """The problems of the output at a key."""
    if not weed.exists(key):
        return [f"expected {key}, but found nothing"]
    rows = [json.loads(line) for line in weed.get(key).splitlines()]
    if [row["id"] for row in rows] != [row["id"] for row in ROWS]:
        return [f"expected the rows of the file in {key}, but found others"]
    return [f"expected vectors in {key}, but found others" for row in rows if len(row.get("embedding", [])) != WIDTH]


if __name__ == "__main__":
    sys.exit(main())
