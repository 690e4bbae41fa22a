"""Tests commands that the emulator cannot run, with stubs for AWS and Docker: `settings`, `check`, `served`, starts, `rotate`, `rollback`
during a release, `redrive` of executions, `mirror`, `upload`, late events in `logs`.
"""

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("functions", "benches")]
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")

import operate  # noqa: E402
import restores  # noqa: E402

OUTPUTS = {
    "ProxySecret": "secret", "Distribution": "E1", "Function": "kivu-api", "Uploads": "uploads", "DeadLetters": "dead",
    "LargeFiles": "machine", "ModelBucket": "models", "Keys": "keys",
}
FUNCTION = "arn:aws:lambda:eu-west-1:0:function:kivu-api"
DIGEST = "sha256:" + "0" * 64


class Aws:
    """All services. `secret` is the value in Secrets Manager, `header` the one of CloudFront."""

    def __init__(self, secret="old", header="old", weights=None, fails=False, parameters=()):
        self.parameters = parameters if parameters is None else dict(parameters)
        self.versions, self.current, self.header, self.weights, self.fails = [secret], 0, header, weights, fails
        # Texts that other operators write, each while a command changes the secret.
        self.others = []
        self.revision, self.tags = 0, {}
        self.uploaded, self.resumed, self.deleted, self.has_repository = [], [], [], True

    def describe_stacks(self, **_):
        if self.parameters is None:
            raise operate.ClientError({"Error": {"Code": "ValidationError"}}, "DescribeStacks")
        parameters = [{"ParameterKey": name, "ParameterValue": value} for name, value in self.parameters.items()]
        return {"Stacks": [{"Parameters": parameters, "Outputs": [{"OutputKey": name, "OutputValue": value} for name, value in OUTPUTS.items()]}]}

    def get_distribution_config(self, Id):
        names = ("x-kivu-proxy-secret", "X-Kivu-Proxy-Secret")
        origins = [{"CustomHeaders": {"Items": [{"HeaderName": name, "HeaderValue": self.header}]}} for name in names]
        return {"ETag": "1", "DistributionConfig": {"Origins": {"Items": origins}}}

    def update_distribution(self, Id, IfMatch, DistributionConfig):
        if self.fails:
            raise operate.ClientError({"Error": {"Code": "PreconditionFailed"}}, "UpdateDistribution")
        headers = DistributionConfig["Origins"]["Items"][0]["CustomHeaders"]["Items"]
        (self.header,) = {header["HeaderValue"] for header in headers}

    @property
    def secret(self):
        return self.versions[self.current]

    def get_secret_value(self, SecretId):
        return {"SecretString": self.secret, "VersionId": str(self.current)}

    def put_secret_value(self, SecretId, SecretString, VersionStages=("AWSCURRENT",)):
        self.versions.append(SecretString)
        if "AWSCURRENT" in VersionStages:
            self.current = len(self.versions) - 1
        return {"VersionId": str(len(self.versions) - 1)}

    def update_secret_version_stage(self, SecretId, VersionStage, MoveToVersionId, RemoveFromVersionId):
        if self.others:
            self.put_secret_value(SecretId, self.others.pop(0)(self.secret))
        if RemoveFromVersionId != str(self.current):
            raise operate.ClientError({"Error": {"Code": "InvalidParameterException"}}, "UpdateSecretVersionStage")
        self.current = int(MoveToVersionId)

    def get_random_password(self, **_):
        return {"RandomPassword": f"after {self.secret}"}

    def get_waiter(self, _):
        return SimpleNamespace(wait=lambda **_: None)

    def get_alias(self, **_):
        weights = {"AdditionalVersionWeights": self.weights} if self.weights else None
        return {"AliasArn": f"{FUNCTION}:live", "FunctionVersion": "3", "RevisionId": str(self.revision), "RoutingConfig": weights}

    def list_tags(self, Resource):
        return {"Tags": self.tags} if Resource == FUNCTION else None

    def tag_resource(self, Resource, Tags):
        self.tags |= Tags

    def get_paginator(self, name):
        page = {
            "list_versions_by_function": {"Versions": [{"Version": version} for version in ("$LATEST", "1", "3", "10")]},
            "list_executions": {"executions": [{"executionArn": "large/old"}, {"executionArn": "large/a"}]},
        }[name]
        return SimpleNamespace(paginate=lambda **_: [page])

    def update_alias(self, FunctionVersion, RevisionId, **_):
        if RevisionId != str(self.revision):
            raise operate.ClientError({"Error": {"Code": "PreconditionFailedException"}}, "UpdateAlias")
        self.version = FunctionVersion

    def get_queue_attributes(self, **_):
        return {"Attributes": {"ApproximateNumberOfMessages": "0"}}

    def redrive_execution(self, executionArn):
        if executionArn == "large/old":
            raise operate.ClientError({"Error": {"Code": "ExecutionNotRedrivable"}}, "RedriveExecution")
        self.resumed.append(executionArn)

    def delete_stack(self, StackName):
        self.deleted.append(StackName)

    def delete_repository(self, repositoryName, force):
        self.deleted.append(repositoryName)
        if not self.has_repository:
            raise operate.ClientError({"Error": {"Code": "RepositoryNotFoundException"}}, "DeleteRepository")

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


class Released(Aws):
    """A deployment in which a release begins after the alias was read."""

    version = None

    def get_paginator(self, name):
        self.revision += 1
        return super().get_paginator(name)


class Functions(Aws):
    """A deployment whose alias differs in one field from what was deployed, and whose versions have snapshots or not."""

    def __init__(self, stale, snapshots="None", weights=None):
        super().__init__(weights=weights)
        self.stale, self.snapshots = stale, snapshots

    def delete_function(self, FunctionName, Qualifier):
        self.deleted.append(f"{FunctionName}:{Qualifier}")

    def get_paginator(self, name):
        if name == "list_versions_by_function":
            versions = [{"Version": version, "SnapStart": {"ApplyOn": self.snapshots}} for version in ("$LATEST", "1", "2", "3", "4", "10")]
            return SimpleNamespace(paginate=lambda **_: [{"Versions": versions}])
        alias = {"ResourceType": "AWS::Lambda::Alias", "PhysicalResourceId": f"{FUNCTION}:live"}
        return SimpleNamespace(paginate=lambda **_: [{"StackResourceSummaries": [alias]}])

    def get_function_configuration(self, FunctionName):
        is_alias = FunctionName.endswith(":live")
        return {"Version": "3" if is_alias else "$LATEST", "MemorySize": 1024, "Timeout": 29} | ({self.stale: 0} if self.stale and is_alias else {})


def keys():
    """Keys that several operators make at the same time are all in the secret; so is a value after a rotation at the same time."""
    made = lambda command, **_: SimpleNamespace(returncode=0, stdout=f"key: kivu_1\nline: {command[2]}:0\n")
    subprocesses, operate.subprocess = operate.subprocess, SimpleNamespace(run=made)
    for others in (["bob:0"], ["bob:0", "carol:0"]):
        aws = Aws(secret="# none\n")
        aws.others = [lambda known, line=line: f"{known}{line}\n" for line in others]
        expect("a key", "kivu_1\n", run("key", aws, name="alice", limits=[], kivu="kivu"))
        expect("all keys", ["# none", *others, "alice:0"], aws.secret.splitlines())
    operate.subprocess = subprocesses
    aws = Aws()
    aws.others = [lambda _: "new"]
    run("rotate", aws)
    expect("a rotation beside another", ("new", "new"), (aws.secret, aws.header))


def missing_settings():
    """Without credentials or a region, as on a machine that has never used AWS."""
    empty = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}
    for variables, expected in (({}, "AWS_REGION"), ({"AWS_REGION": "eu-west-1"}, "AWS_PROFILE")):
        command = [sys.executable, "-B", operate.__file__, "settings"]
        done = subprocess.run(command, env=empty | variables, capture_output=True, text=True)
        expect(f"exit code with {variables}", 1, done.returncode)
        expect(f"the missing setting in {done.stderr!r}", True, done.stderr.startswith("error: expected ") and f"set {expected}" in done.stderr)


def settings():
    """`make deploy` builds as before, unless variables say otherwise."""
    minilm, unknown = ".kivu/bundles/minilm", "expected a record of the bundles"
    stack = {"Architecture": "x86_64", "Packed": ".kivu/bundles/rank", "PackedOnnx": "yes"}
    nothing = {"packed": None, "onnx": None, "architecture": None, "parameters": "Memory=1024"}
    image = {"Package": "image", "SnapStart": "yes"}
    for parameters, given, expected in (
        (None, {}, f"ARCHITECTURE=arm64 PACKED={minilm} ONNX="),
        (None, {"architecture": "x86_64", "packed": "a b", "onnx": "yes"}, "ARCHITECTURE=x86_64 'PACKED=a b' ONNX=yes"),
        (stack, {}, "ARCHITECTURE=x86_64 PACKED=.kivu/bundles/rank ONNX=yes"),
        (stack, {"packed": "a", "onnx": "no", "architecture": "arm64"}, "ARCHITECTURE=arm64 PACKED=a ONNX="),
        (stack, {"parameters": "Architecture=arm64"}, "ARCHITECTURE=arm64 PACKED=.kivu/bundles/rank ONNX=yes"),
        (stack, {"parameters": "Architecture=arm64", "architecture": "x86_64"}, "expected one architecture"),
        (stack | {"Packed": "my-model"}, {}, "found no `my-model/manifest.toml`"),
        (stack | {"Packed": "none"}, {}, "ARCHITECTURE=x86_64 PACKED= ONNX=yes"),
        (stack, {}, "PACKAGE=zip"),
        (None, {"parameters": "Package=image"}, "PACKAGE=image"),
        (stack | image, {}, "PACKAGE=image"),
        (stack | image, {"parameters": "Package=zip"}, "error: SnapStart=yes needs Package=image"),
        (stack | image, {"parameters": "ProvisionedConcurrency=1"}, "error: SnapStart=yes does not work with ProvisionedConcurrency"),
        (None, {"parameters": "Package=docker"}, "error: expected Package=zip or Package=image, but found Package=docker"),
        (None, {"parameters": "LargeModels=s3://b/m LargeRunsOn=instances LargeMemory=3008"}, "error: LargeRunsOn=instances needs whole CPUs"),
        ({"Architecture": "arm64"}, {}, unknown),
        ({"Architecture": "arm64"}, {"packed": "a"}, "ARCHITECTURE=arm64 PACKED=a ONNX="),
    ):
        found = run("settings", Aws(parameters=parameters), **nothing | given)
        expect(f"settings of {parameters} with {given}: {found}", True, expected in found)


def memory():
    """Bundles that an archive or a function cannot hold are refused before anything is built."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "two"):
            Path(folder, name).mkdir()
            with Path(folder, name, "weights.bin").open("wb") as file:
                file.truncate(400 << 20)
        both = f"{folder}/one {folder}/two"
        for parameters, packed, expected in (
            ("Package=image Memory=1024", both, ""),
            ("Package=image Memory=512", f"{folder}/one", ""),
            ("Package=image Memory=512", both, "error: Memory=512 cannot hold the packed bundles' 800 MB; set Memory to more, or pack fewer bundles"),
            ("Package=image Memory=512 LoadModels=on-demand", both, ""),
            ("Package=image BatchMemory=512", both, ""),
            ("Package=image Batch=yes BatchMemory=512", both, "error: BatchMemory=512 cannot hold"),
            ("Memory=1024", f"{folder}/one", "error: Package=zip holds 250 MB, but the packed bundles have 400 MB; set Package=image"),
            ("Package=image SnapStart=yes LoadModels=on-demand", "", "error: SnapStart=yes needs LoadModels=start"),
            ("SnapStart=yes", "", "error: SnapStart=yes needs Package=image"),
        ):
            found = run("check", Aws(), parameters=parameters, packed=packed)
            expect(f"check of {parameters}: {found}", True, expected in found and bool(found) == bool(expected))


def snapshots():
    """Versions with snapshots cost; those in use and the one before them remain."""
    for kind, weights, expected in (("None", None, []), ("PublishedVersions", None, ["1"]), ("PublishedVersions", {"10": 0.1}, ["1"]), ("PublishedVersions", {"2": 0.1}, [])):
        aws = Functions(None, kind, weights)
        run("served", aws)
        expect(f"deleted versions, with {kind} and {weights}", expected, [each.rpartition(":")[2] for each in aws.deleted])


def versions():
    """A rollback does not return to a version that a release or an earlier rollback has left."""
    for served, expected, then in (("", "2", "2"), ("1 3", "1", "1"), ("1 2 3", "2", "1 2"), ("3", "2", "2"), ("1", "2", "1 2")):
        aws = Functions(None)
        aws.tags = {"kivu-served": served}
        run("rollback", aws)
        expect(f"the version after {served!r}, and the record", (expected, then), (aws.version, aws.tags["kivu-served"]))
    aws = Functions(None, "PublishedVersions")
    aws.tags = {"kivu-served": "1"}
    run("served", aws)
    expect("the version before one that was left, and the record", (["1"], "1 3"), ([each.rpartition(":")[2] for each in aws.deleted], aws.tags["kivu-served"]))
    aws.deleted = []
    run("served", aws)
    expect("snapshots that are deleted then", ["2"], [each.rpartition(":")[2] for each in aws.deleted])


def starts():
    """Lambda's reports, in the form of its documentation, become a table."""
    results = []
    for metrics in ({"restoreDurationMs": 40.5}, {"restoreDurationMs": 60.5}, {"initDurationMs": 26.0}, {}):
        record = {"requestId": "1", "metrics": {"durationMs": 3.5, "billedDurationMs": 44, "memorySizeMB": 1769, "maxMemoryUsedMB": 40, **metrics}, "status": "success"}
        log = "\n".join(map(json.dumps, ({"type": "platform.start"}, {"type": "platform.report", "record": record})))
        answer = {"LogResult": base64.b64encode(log.encode()), "Payload": io.BytesIO(b'{"statusCode": 200}')}
        results.append(restores.invoke(SimpleNamespace(invoke=lambda **_: answer), "kivu-api-image:live", b"{}"))
    rows = [line.split(" | ") for line in restores.table(results).splitlines()[2:]]
    expect("the table's rows", [["| restored", "2", "50.5, 60.5", "3.5, 3.5"], ["| initialized", "1", "26.0, 26.0", "3.5, 3.5"], ["| warm", "1", "0.0, 0.0", "3.5, 3.5"]],
           [row[:4] for row in rows])


def late_events():
    """An event that arrives after a later one is printed, and each once."""
    at = lambda seconds, name: {"eventId": name, "timestamp": seconds * 1000, "message": name}
    polls = [[], [at(100, "b")], [at(99, "late"), at(100, "a"), at(100, "b")], [at(99, "late"), at(100, "a"), at(100, "b"), at(101, "d")]]
    starts = []

    def pages(startTime, **_):
        starts.append(startTime)
        return [{"events": [event]} for event in polls[len(starts) - 1] if event["timestamp"] >= startTime]

    def sleep(_):
        if len(starts) == len(polls):
            sys.exit()

    aws, found = Aws(parameters={"LogGroup": "kivu"}), io.StringIO()
    listed = lambda **_: [{"StackResourceSummaries": []}]
    aws.get_paginator = lambda name: SimpleNamespace(paginate=pages if name == "filter_log_events" else listed)
    clock, operate.time = operate.time, SimpleNamespace(time=lambda: 0, sleep=sleep)
    operate.boto3 = SimpleNamespace(client=lambda _: aws)
    with contextlib.redirect_stdout(found), contextlib.suppress(SystemExit):
        operate.logs(SimpleNamespace(stack="kivu"))
    operate.time = clock
    expect("events", ["b", "late", "a", "d"], [line.split()[-1] for line in found.getvalue().splitlines()])
    expect("where the last requests begin", [40_000, 40_000], starts[2:])


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

    keys()
    missing_settings()
    settings()
    memory()
    snapshots()
    versions()
    starts()
    late_events()
    for stale, expected in ((None, ""), ("MemorySize", "found version 3 with another MemorySize")):
        found = run("served", Functions(stale))
        expect(f"aliases with another {stale}", True, expected in found and bool(found) == bool(stale))

    aws = Aws()
    run("rollback", aws)
    expect("the version after a rollback", "1", aws.version)
    expect("a rollback during a release", True, "release in progress" in run("rollback", Aws(weights={"4": 0.1})))
    aws = Released()
    with contextlib.suppress(operate.ClientError):
        run("rollback", aws)
    expect("the version after a release that began meanwhile", None, aws.version)

    aws = Aws()
    found = run("redrive", aws)
    expect("redrive", True, "0 messages are in the queue again, 1 executions are resumed\n1 executions cannot be resumed" in found)
    expect("resumed executions", ["large/a"], aws.resumed)

    for has_repository in (True, False):
        aws = Aws()
        aws.has_repository = has_repository
        expect("undeploy", True, "kivu is deleted" in run("undeploy", aws))
        expect("what it deletes", ["kivu", "kivu-triton", "kivu-functions"], aws.deleted)

    commands = []
    record = lambda command, input=None, **_: commands.append((command[1], command[-1], input)) or SimpleNamespace(returncode=0)
    operate.subprocess = SimpleNamespace(run=record)
    uri = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/kivu-triton"
    found = run("mirror", Aws(), image="nvcr.io/nvidia/tritonserver:25.10-py3")
    expect("mirror", f"TritonImage={uri}@{DIGEST}\n", found)
    source, host = "nvcr.io/nvidia/tritonserver:25.10-py3", uri.partition("/")[0]
    expect("Docker's commands", [("login", host, "sesame"), ("pull", source, None), ("tag", f"{uri}:25.10-py3", None),
                                 ("push", f"{uri}:25.10-py3", None)], commands)

    def triton(command, **_):
        for file in ("minilm/config.pbtxt", "minilm/1/model.onnx"):
            (command[4] / file).parent.mkdir(parents=True, exist_ok=True)
            (command[4] / file).write_text("")
        return SimpleNamespace(returncode=0, stdout="")

    operate.subprocess, aws = SimpleNamespace(run=triton), Aws()
    run("upload", aws, bundle="minilm", kivu="kivu", triton=[])
    expect("uploads", ["models/triton/minilm/1/model.onnx", "models/triton/minilm/config.pbtxt"], aws.uploaded)


if __name__ == "__main__":
    main()
