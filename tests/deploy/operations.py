"""Tests commands that the emulator cannot run, with stubs for AWS and Docker: `rotate`, `rollback` during a release,
`redrive` of executions, `mirror`, `upload`.
"""

import base64
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "functions"))
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")

import operate  # noqa: E402

OUTPUTS = {
    "ProxySecret": "secret", "Distribution": "E1", "Function": "kivu-api", "Uploads": "uploads", "DeadLetters": "dead",
    "LargeFiles": "machine", "ModelBucket": "models",
}
DIGEST = "sha256:" + "0" * 64


class Aws:
    """All services. `secret` is the value in Secrets Manager, `header` the one of CloudFront."""

    def __init__(self, secret="old", header="old", weights=None, fails=False):
        self.secret, self.header, self.weights, self.fails = secret, header, weights, fails
        self.uploaded, self.resumed = [], []

    def describe_stacks(self, **_):
        return {"Stacks": [{"Outputs": [{"OutputKey": name, "OutputValue": value} for name, value in OUTPUTS.items()]}]}

    def get_distribution_config(self, Id):
        headers = {"Items": [{"HeaderName": "x-kivu-front", "HeaderValue": self.header}]}
        return {"ETag": "1", "DistributionConfig": {"Origins": {"Items": [{"CustomHeaders": headers}]}}}

    def update_distribution(self, Id, IfMatch, DistributionConfig):
        if self.fails:
            raise operate.ClientError({"Error": {"Code": "PreconditionFailed"}}, "UpdateDistribution")
        self.header = DistributionConfig["Origins"]["Items"][0]["CustomHeaders"]["Items"][0]["HeaderValue"]

    def get_secret_value(self, SecretId):
        return {"SecretString": self.secret}

    def put_secret_value(self, SecretId, SecretString):
        self.secret = SecretString

    def get_random_password(self, **_):
        return {"RandomPassword": f"after {self.secret}"}

    def get_waiter(self, _):
        return SimpleNamespace(wait=lambda **_: None)

    def get_alias(self, **_):
        return {"FunctionVersion": "3", "RoutingConfig": {"AdditionalVersionWeights": self.weights} if self.weights else None}

    def get_paginator(self, name):
        page = {
            "list_versions_by_function": {"Versions": [{"Version": version} for version in ("$LATEST", "1", "3", "10")]},
            "list_executions": {"executions": [{"executionArn": "large/a"}]},
        }[name]
        return SimpleNamespace(paginate=lambda **_: [page])

    def update_alias(self, FunctionVersion, **_):
        self.version = FunctionVersion

    def get_queue_attributes(self, **_):
        return {"Attributes": {"ApproximateNumberOfMessages": "0"}}

    def redrive_execution(self, executionArn):
        self.resumed.append(executionArn)

    def create_repository(self, **_):
        raise operate.ClientError({"Error": {"Code": "RepositoryAlreadyExistsException"}}, "CreateRepository")

    def describe_repositories(self, repositoryNames):
        return {"repositories": [{"repositoryUri": f"000000000000.dkr.ecr.eu-west-1.amazonaws.com/{repositoryNames[0]}"}]}

    def get_authorization_token(self):
        return {"authorizationData": [{"authorizationToken": base64.b64encode(b"AWS:sesame").decode()}]}

    def describe_images(self, imageIds, **_):
        return {"imageDetails": [{"imageDigest": DIGEST}]} if imageIds == [{"imageTag": "25.10-py3"}] else {}

    def upload_file(self, file, bucket, name):
        self.uploaded.append(f"{bucket}/{name}")


def run(command, aws, **options):
    """The output of a command, or the message with which it ends."""
    operate.boto3 = SimpleNamespace(client=lambda _: aws)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        try:
            operate.COMMANDS[command](SimpleNamespace(stack="kivu", **options))
        except SystemExit as end:
            return str(end)
    return out.getvalue()


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r}")


def main():
    aws = Aws()
    run("rotate", aws)
    expect("a rotation", ("after old", "after old"), (aws.secret, aws.header))
    aws = Aws(fails=True)
    with contextlib.suppress(operate.ClientError):
        run("rotate", aws)
    expect("an interrupted rotation", ("after old", "old"), (aws.secret, aws.header))
    aws.fails = False
    run("rotate", aws)
    expect("its completion, without another secret", ("after old", "after old"), (aws.secret, aws.header))

    aws = Aws()
    run("rollback", aws)
    expect("the version after a rollback", "1", aws.version)
    expect("a rollback during a release", True, "release in progress" in run("rollback", Aws(weights={"4": 0.1})))

    aws = Aws()
    expect("redrive", "0 messages are in the queue again, 1 executions are resumed\n", run("redrive", aws))
    expect("resumed executions", ["large/a"], aws.resumed)

    commands = []
    record = lambda command, input=None, **_: commands.append((command[1], command[-1], input)) or SimpleNamespace(returncode=0)
    operate.subprocess = SimpleNamespace(run=record)
    uri = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/kivu-triton"
    found = run("mirror", Aws(), image="nvcr.io/nvidia/tritonserver:25.10-py3")
    expect("mirror", f"TritonImage={uri}@{DIGEST}\n", found)
    source, host = "nvcr.io/nvidia/tritonserver:25.10-py3", uri.partition("/")[0]
    expect("Docker's commands", [("login", host, "sesame"), ("pull", source, None), ("tag", f"{uri}:25.10-py3", None),
                                 ("push", f"{uri}:25.10-py3", None)], commands)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("minilm/config.pbtxt", "minilm/1/model.onnx"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text("")
        aws = Aws()
        run("upload", aws, folder=folder)
        expect("uploads", ["models/triton/minilm/1/model.onnx", "models/triton/minilm/config.pbtxt"], aws.uploaded)
    expect("a folder without models", True, "no config.pbtxt" in run("upload", Aws(), folder=Path("/nowhere")))


if __name__ == "__main__":
    main()
