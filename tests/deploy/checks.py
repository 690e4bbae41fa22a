"""Tests the checks before a release: the code in deploy/checks.yaml, with stubs that validate requests and responses by
botocore's service models, and with the function `api` as the new version.

    python tests/deploy/checks.py API KIVU BUNDLE

BUNDLE is an embedding model.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lambda"))

import boto3  # noqa: E402
from botocore.response import StreamingBody  # noqa: E402
from botocore.stub import ANY, Stubber  # noqa: E402
from botocore.validate import ParamValidator  # noqa: E402
from streaming import CompiledFunction  # noqa: E402
from template import EVERYTHING, Template, source, ROOT  # noqa: E402

API, KIVU, BUNDLE = (str(Path(argument).absolute()) for argument in sys.argv[1:])
CODE = source(ROOT / "deploy" / "checks.yaml")["Resources"]["ChecksFunction"]["Properties"]["Code"]["ZipFile"]
EVENT = {"DeploymentId": "d-1", "LifecycleEventHookExecutionId": "e-1"}
CREDENTIALS = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-west-1"}
client = boto3.client


def stream(data):
    return StreamingBody(io.BytesIO(data), len(data))


class Version:
    """Lambda, with a function as the new version."""

    def __init__(self, answer):
        self.answer, self.shape = answer, client("lambda", **CREDENTIALS).meta.service_model.operation_model("Invoke").input_shape

    def invoke(self, **given):
        report = ParamValidator().validate(given, self.shape)
        assert not report.has_errors(), report.generate_report()
        assert given["FunctionName"] == "the-version"
        answer = self.answer(json.loads(given["Payload"]))
        return {**answer, "Payload": stream(json.dumps(answer["Payload"]).encode())}


def run(file, answer, auth_mode="keys", key="", left_ms=600_000):
    """The reported status, and what is logged, for a checks.jsonl; `None` for one that cannot be read."""
    stubs = {name: Stubber(client(name, **CREDENTIALS)) for name in ("s3", "secretsmanager", "codedeploy")}
    place = {"Bucket": "models", "Key": "checks.jsonl"}
    if file is None:
        stubs["s3"].add_client_error("get_object", "AccessDenied", expected_params=place)
    else:
        stubs["s3"].add_response("get_object", {"Body": stream(file.encode())}, place)
    if key:
        stubs["secretsmanager"].add_response("get_secret_value", {"SecretString": f"{key}\n"}, {"SecretId": "release-key"})
    reported = {"deploymentId": "d-1", "lifecycleEventHookExecutionId": "e-1", "status": ANY}
    stubs["codedeploy"].add_response("put_lifecycle_event_hook_execution_status", {"lifecycleEventHookExecutionId": "e-1"}, reported)
    clients = {"lambda": Version(answer)} | {name: stub.client for name, stub in stubs.items()}
    statuses = []
    clients["codedeploy"].meta.events.register("provide-client-params", lambda params, **_: statuses.append(params["status"]))
    os.environ |= {"VERSION": "the-version", "BUCKET": "models", "AUTH_MODE": auth_mode, "RELEASE_KEY": "release-key" if key else "", "PROXY_SECRET": ""}
    for stub in stubs.values():
        stub.activate()
    boto3.client = lambda name, **_: clients[name]
    namespace, log = {}, io.StringIO()
    try:
        exec(compile(CODE, "checks.yaml", "exec"), namespace)
        with contextlib.redirect_stdout(log):
            namespace["handler"](EVENT, SimpleNamespace(get_remaining_time_in_millis=lambda: left_ms))
    finally:
        boto3.client = client
    (status,) = statuses
    if key:
        assert key not in log.getvalue(), "the log must not hold the key"
    return status, json.loads(log.getvalue())["failure"]


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r}")


def fails(what, failure, *arguments, **options):
    expect(what, run(*arguments, **options), ("Failed", failure))


def scripted_versions():
    """What a version answers, and how that is reported."""
    answer = lambda body, status=200: lambda _: {"Payload": {"statusCode": status, "body": json.dumps(body)}}
    line = lambda **fields: json.dumps({"path": "/embed", **fields})
    expected = line(response=[[0.1, 0.2]])
    expect("equal values", run(expected + "\n\n", answer([[0.1004, 0.2]])), ("Succeeded", None))
    expect("more fields", run(line(response={"a": "b"}), answer({"a": "b", "c": 1})), ("Succeeded", None))
    expect("a tolerance", run(line(response=1, tolerance=0.5), answer(1.5)), ("Succeeded", None))
    expect("another status", run(line(status=404), answer(None, 404)), ("Succeeded", None))
    fails("a number", "line 1: response[0][1]: expected 0.2, but found 0.3", expected, answer([[0.1, 0.3]]))
    fails("no number", "line 1: response[0][1]: expected number, but found null", expected, answer([[0.1, None]]))
    fails("a boolean", "line 1: response: expected boolean, but found number", line(response=True), answer(1))
    fails("NaN", "line 1: response[0][1]: expected 0.2, but found nan", expected, answer([[0.1, float("nan")]]))
    fails("a length", "line 1: response[0]: expected list of 2, but found list of 1", expected, answer([[0.1]]))
    fails("a field", "line 1: response: expected the fields a, but found none", line(response={"a": 1}), answer({"b": 1}))
    fails("no object", "line 1: response: expected object, but found string", line(response={"a": 1}), answer("b"))
    different = "line 1: response: expected the string in checks.jsonl, but found a different one"
    fails("a text", different, line(response="a"), answer("b"))
    fails("a status", "line 2: expected status 200, but found 503", "\n" + expected, answer(None, 503))
    error = lambda _: {"FunctionError": "Unhandled", "Payload": {"errorType": "Runtime.ExitError"}}
    fails("an end", "line 1: expected a response, but found the error Runtime.ExitError", expected, error)
    fails("no checks", "expected at least one check in checks.jsonl, but found none", "\n", answer(None))
    fails("time", "line 1: expected all checks to end within ten minutes; remove some", expected, answer(None), left_ms=1000)
    status, failure = run(line(paths="/"), answer(None))
    expect("an unknown field", (status, "expected an object with `path`" in failure), ("Failed", True))
    for what, file in (("no JSON", "{"), ("no file", None), ("another value", "[]")):
        expect(what, run(file, answer(None))[0], "Failed")


@contextlib.contextmanager
def api(mode, **variables):
    """The function `api`, as a version to check."""
    with tempfile.TemporaryDirectory() as folder, CompiledFunction(API, {"KIVU_MODELS": BUNDLE, "KIVU_AUTH__MODE": mode, **variables}, folder) as function:
        yield lambda event: {"Payload": json.loads(function.next(event)[2])}


def real_version():
    """A version answers the checks with each kind of credentials."""
    made = subprocess.run([KIVU, "key", "checks"], capture_output=True, text=True, check=True).stdout
    key, line = (each.split(maxsplit=1)[1] for each in made.splitlines())
    embed = {"path": "/embed", "body": {"inputs": "hello"}}
    with api("keys", KIVU_AUTH__KEYS=line) as version:
        kept = []
        remember = lambda event: kept.append(version(event)) or kept[-1]
        expect("a status", run(json.dumps(embed), remember, key=key), ("Succeeded", None))
        embed["response"] = json.loads(kept[0]["Payload"]["body"])
        file = "\n".join(map(json.dumps, [embed, {"path": "/health"}, {"path": "/none", "status": 404}]))
        expect("the same version", run(file, version, key=key), ("Succeeded", None))
        fails("another key", "line 1: expected status 200, but found 401", file, version, key="kivu_other")
        embed["response"][0][0] += 0.1
        status, failure = run(json.dumps(embed), version, key=key)
        expect("another model", (status, failure.startswith("line 1: response[0][0]: expected ")), ("Failed", True))
        embed["response"][0][0] -= 0.1
    for mode in ("iam", "jwt"):
        with api(mode) as version:
            expect(mode, run(json.dumps(embed), version, auth_mode=mode), ("Succeeded", None))
            fails(f"no {mode}", "line 1: expected status 200, but found 401", json.dumps(embed), version, auth_mode="none")


def main():
    variables = Template(EVERYTHING).properties("ChecksFunction")["Environment"]["Variables"]
    expect("variables", sorted(variables), ["AUTH_MODE", "BUCKET", "PROXY_SECRET", "RELEASE_KEY", "VERSION"])
    scripted_versions()
    real_version()


if __name__ == "__main__":
    main()
