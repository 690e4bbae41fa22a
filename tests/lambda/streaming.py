#!/usr/bin/env python3
"""Runs the function `api` with streamed responses against a runtime API on loopback.

    python tests/lambda/streaming.py BOOTSTRAP BUNDLE

Checks what Lambda would get for events of a function URL and of a REST API: prelude, separator, chunks, and that errors
before the first byte have their status. BUNDLE is an embedding model. Needs only Python's standard library.
"""

import base64
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from runtime_api import TIMEOUT_S, Function, expect

MANY = 3000
# Lambda's limit for responses that are not streamed.
BUFFERED_BYTES = 6 * 1024 * 1024
PRELUDE_TYPE = "application/vnd.awslambda.http-integration-response"


def url_event(method, path, body=None, headers=(), is_base64=False):
    """An event of a function URL."""
    http = {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "test"}
    context = {"http": http, "stage": "$default", "domainName": "a.lambda-url.eu-west-1.on.aws", "requestId": "1",
               "accountId": "anonymous", "apiId": "a", "domainPrefix": "a", "routeKey": "$default",
               "time": "12/Mar/2020:19:03:58 +0000", "timeEpoch": 1583348638390}
    return {"version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
            "headers": {"content-type": "application/json", **dict(headers)}, "requestContext": context, "body": body,
            "isBase64Encoded": is_base64}


class CompiledFunction(Function):
    """A program in `functions`."""

    def __init__(self, bootstrap, variables, folder):
        name = {"AWS_LAMBDA_FUNCTION_NAME": "api", "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3008"}
        super().__init__([bootstrap], name | variables, folder, Path(folder, "log"))

    def stream(self, event, left_s=TIMEOUT_S):
        """A streamed response: its status, headers, body and number of chunks."""
        route, headers, body, chunks = self.next(event, left_s)
        expect("the route", route, "response")
        expect("the type", headers.get("Content-Type", headers.get("content-type")), PRELUDE_TYPE)
        expect("the mode", {name.lower(): value for name, value in headers.items()}.get("lambda-runtime-function-response-mode"), "streaming")
        prelude, separator, body = body.partition(bytes(8))
        expect("the separator", separator, bytes(8))
        prelude = json.loads(prelude)
        expect("the prelude's fields", sorted(prelude), ["cookies", "headers", "statusCode"])
        return prelude["statusCode"], prelude["headers"], body, chunks


def check(function):
    embed = lambda texts: json.dumps({"inputs": texts})
    status, headers, body, _ = function.stream(url_event("POST", "/embed", embed(["a text"])))
    expect("the status", status, 200)
    expect("the type", headers["content-type"], "application/json")
    vector = json.loads(body)[0]

    status, _, body, chunks = function.stream(url_event("POST", "/embed_all", embed(["many " * 10] * MANY)))
    expect("the status of a long response", status, 200)
    expect("its rows", len(json.loads(body)), MANY)
    if len(body) <= BUFFERED_BYTES or chunks < len(body) // 65_536:
        sys.exit(f"expected more than {BUFFERED_BYTES} bytes in many chunks, but found {len(body)} in {chunks}")
    print(f"{len(body) / 1e6:.0f} MB in {chunks} chunks")

    compressed = base64.b64encode(gzip.compress(embed(["a text"]).encode())).decode()
    event = url_event("POST", "/embed", compressed, {"content-encoding": "gzip"}, is_base64=True)
    status, _, body, _ = function.stream(event)
    expect("a compressed request", (status, json.loads(body)), (200, [vector]))

    expect("HEAD", function.stream(url_event("HEAD", "/health"))[::2], (200, b""))
    expect("OPTIONS", function.stream(url_event("OPTIONS", "/embed"))[::2], (204, b""))
    expect("an empty body", function.stream(url_event("GET", "/health"))[::2], (200, b""))

    # Errors before the first byte keep their status.
    for what, event, left_s, expected in (
        ("an unknown route", url_event("GET", "/none"), TIMEOUT_S, 404),
        ("a body that is no JSON", url_event("POST", "/embed", "{"), TIMEOUT_S, 400),
        ("too many texts", url_event("POST", "/embed", embed(["a"] * (MANY + 1))), TIMEOUT_S, 413),
        ("a deadline that has passed", url_event("POST", "/embed", embed(["a text"])), 0.05, 504),
    ):
        status, headers, body, _ = function.stream(event, left_s)
        expect(what, (status, headers["content-type"], "error" in json.loads(body)), (expected, "application/json", True))

    rest = json.loads(Path(__file__).with_name("rest_plain.json").read_text())
    expect("an event of a REST API", function.stream(rest)[0], 200)

    # A load balancer invokes this function too, and does not read streams.
    balanced = json.loads(Path(__file__).with_name("alb_plain.json").read_text())
    route, headers, body, _ = function.next(balanced)
    modes = [value for name, value in headers.items() if name.lower() == "lambda-runtime-function-response-mode"]
    expect("an event of a load balancer", (route, modes, json.loads(body)["statusCode"]), ("response", [], 200))

    # The runtime API gets this error in its own form.
    expect("an event that is no request", function.next(b'{"Records": []}')[0], "error")

    # A client that disconnects ends its invocation, not the function.
    function.api.cancels = True
    function.api.events.put((url_event("POST", "/embed_all", embed(["many " * 10] * MANY)), TIMEOUT_S))
    status, _, body, _ = function.stream(url_event("POST", "/embed", embed(["a text"])))
    expect("the request after it", (status, json.loads(body)), (200, [vector]))
    expect("the function's exit status", function.process.poll(), None)


def main():
    bootstrap, bundle = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    variables = {
        "KIVU_MODELS": str(bundle), "KIVU_AUTH__MODE": "none", "KIVU_LIMITS__VALUES": "15000000", "KIVU_LIMITS__TEXTS": str(MANY),
    }
    with tempfile.TemporaryDirectory() as folder:
        refused = subprocess.run([bootstrap], cwd=folder, env=variables | {"RESPONSE_MODE": "stream"}, capture_output=True, text=True)
        message = "expected `RESPONSE_MODE` to be `buffered` or `streaming`, but found `stream`"
        expect("an unknown mode", (refused.returncode != 0, message in refused.stdout + refused.stderr), (True, True))
        with CompiledFunction(bootstrap, variables | {"RESPONSE_MODE": "streaming"}, folder) as function:
            check(function)


if __name__ == "__main__":
    main()
