#!/usr/bin/env python3
"""Runs the function `api` against a runtime API on loopback, with responses around Lambda's limit.

    python tests/lambda/long_responses.py BOOTSTRAP BUNDLE

Lambda refuses a longer response, and the client gets 502. BUNDLE is an embedding model. Needs only Python's standard
library.
"""

import json
import sys
import tempfile
from pathlib import Path

from runtime_api import TIMEOUT_S, expect
from streaming import CompiledFunction, url_event

LAMBDA_BYTES, BALANCER_BYTES = 6_291_556, 1_000_000
MANY = 2000


def balanced(path, body):
    event = json.loads(Path(__file__).with_name("alb_plain.json").read_text())
    return event | {"path": path, "body": body}


def answer(function, event, limit):
    """A response's status and message. Nothing above the limit is sent."""
    route, _, payload, _ = function.next(event, TIMEOUT_S)
    expect("the route", route, "response")
    if len(payload) > limit:
        sys.exit(f"expected at most {limit} bytes, but found {len(payload)}")
    response = json.loads(payload)
    body = json.loads(response["body"])
    return response["statusCode"], body.get("error", body.get("message")) if isinstance(body, dict) else "", len(payload)


def check(function):
    refused = lambda limit, platform: f"expected a response of at most {limit} bytes, the limit of {platform}, but "
    of_lambda, of_balancer = refused(LAMBDA_BYTES, "Lambda"), refused(BALANCER_BYTES, "the load balancer")
    for what, path, body, starts in (
        ("token vectors", "/embed_all", {"inputs": ["many " * 10] * MANY}, of_lambda + "found "),
        ("tokens", "/tokenize", {"inputs": ["many " * 60] * MANY}, of_lambda + "found "),
        ("echoed texts", "/v1/embed", {"texts": ["many " * 700] * MANY}, of_lambda + "this one would take at least "),
        ("vectors", "/embed", {"inputs": ["a"] * MANY}, ""),
    ):
        status, message, size = answer(function, url_event("POST", path, json.dumps(body)), LAMBDA_BYTES)
        expect(f"the status for {what}", status, 413 if starts else 200)
        if not message.startswith(starts):
            sys.exit(f"{what}: expected {starts!r}, but found {message!r}")
        print(what, size, message)
    status, message, _ = answer(function, balanced("/embed_all", json.dumps({"inputs": ["many " * 10] * 400})), BALANCER_BYTES)
    expect("a response to a load balancer", (status, message.startswith(of_balancer + "found ")), (413, True))
    # Near the limit, responses are refused only if they are longer. All texts are the same, so sizes are a line.
    rows = lambda count: answer(function, url_event("POST", "/embed_all", json.dumps({"inputs": ["many " * 10] * count})), LAMBDA_BYTES)
    (_, _, one), (_, _, several) = rows(1), rows(101)
    row = (several - one) / 100
    for margin, expected in ((-0.001, 200), (0.001, 413)):
        count = round((LAMBDA_BYTES * (1 + margin) - one) / row) + 1
        status, message, size = rows(count)
        print(count, "texts", size, message)
        expect(f"the status for {count} texts", status, expected)


def main():
    bootstrap, bundle = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    variables = {
        "KIVU_MODELS": str(bundle), "KIVU_AUTH__MODE": "none", "KIVU_LIMITS__VALUES": "15000000", "KIVU_LIMITS__TEXTS": str(MANY),
        "KIVU_LIMITS__BODY_BYTES": "20000000",
    }
    with tempfile.TemporaryDirectory() as folder:
        with CompiledFunction(bootstrap, variables, folder) as function:
            check(function)
            function.log.seek(0)
            lines = [json.loads(line) for line in function.log.read().decode().splitlines() if line.startswith("{")]
            statuses = [line["status"] for line in lines if line.get("message") == "request"]
            expect("the statuses in the log", statuses[:5], [413, 413, 413, 200, 413])


if __name__ == "__main__":
    main()
