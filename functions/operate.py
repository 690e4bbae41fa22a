"""Operates a deployment, with the credentials and the region of the environment.

    deploy/operate [--stack kivu] COMMAND

`make deploy` runs `settings`, `check`, `quotas`, `image` and `served`.
"""

import argparse
import base64
import os
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from package import MAX_UNPACKED

# The SDKs of AWS and its command line read AWS_REGION first; boto3 reads only the other name.
if "AWS_REGION" in os.environ:
    os.environ["AWS_DEFAULT_REGION"] = os.environ["AWS_REGION"]

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "template.yaml"
# The templates and functions of `sam build`.
BUILT_STACK = ROOT / ".aws-sam/build"
# Folder of the bundles that `make` builds.
BUILT = Path(".kivu/bundles")
# Lambda keeps this much concurrency out of reservations.
MIN_UNRESERVED = 100
CONCURRENCY = ("lambda", "L-B99A9384")
# The alias of the function that requests use.
ALIAS = "live"
# Tag of a function with the versions that requests got, separated by spaces, and how many of them.
SERVED, MAX_SERVED = "kivu-served", 30
# Header of the proxy's secret, which CloudFront sends.
PROXY_HEADER = "x-kivu-proxy-secret"
# The staging label of a secret's version before it is the current one.
NEXT = "kivu-next"
# Attempts to change a secret that other operators change at the same time.
TRIES = 10
# Fields of a function's configuration that a version fixes.
CONFIGURATION = (
    "CodeSha256", "MemorySize", "Timeout", "Role", "KMSKeyArn", "Architectures", "Environment", "VpcConfig", "TracingConfig",
    "LoggingConfig",
)
ON_DEMAND_GPUS, SPOT_GPUS = ("ec2", "L-DB2E81BA"), ("ec2", "L-3819A6DF")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", default="kivu", help="the deployment's name [default: kivu]")
    commands = parser.add_subparsers(dest="command", required=True)
    settings_parser = commands.add_parser("settings", help="print how to build the functions, as variables of make")
    settings_parser.add_argument("parameters", nargs="?", default="", help="parameters of the template: 'NAME=VALUE ...'")
    settings_parser.add_argument("--packed", help="bundles to pack, separated by spaces")
    settings_parser.add_argument("--onnx", choices=("yes", "no"), help="whether to pack ONNX Runtime without such a bundle")
    settings_parser.add_argument("--architecture", choices=("arm64", "x86_64"))
    check_parser = commands.add_parser("check", help="refuse parameters that contradict each other or the packed bundles")
    check_parser.add_argument("parameters", nargs="?", default="", help="parameters of the template: 'NAME=VALUE ...'")
    check_parser.add_argument("--packed", default="", help="packed bundles, separated by spaces")
    image_parser = commands.add_parser("image", help="with Package=image, push the built functions as images")
    image_parser.add_argument("parameters", nargs="?", default="", help="parameters of the template: 'NAME=VALUE ...'")
    image_parser.add_argument("--base", required=True, help="the base of the images: REGISTRY/NAME:TAG")
    image_parser.add_argument("--local", action="store_true", help="load them into Docker instead")
    quotas_parser = commands.add_parser("quotas", help="compare the account's quotas with what the deployment needs")
    quotas_parser.add_argument("parameters", nargs="?", default="", help="parameters of the template: 'NAME=VALUE ...'")
    commands.add_parser("served", help="check that requests get what was deployed")
    key_parser = commands.add_parser("key", help="create an API key")
    key_parser.add_argument("name")
    key_parser.add_argument("limits", nargs=argparse.REMAINDER, help="options of `kivu key`: --expires 2027-01-31")
    commands.add_parser("rotate", help="replace the secret that CloudFront sends")
    commands.add_parser("rollback", help="return to the version before the current one")
    commands.add_parser("redrive", help="process failed files again")
    mirror_parser = commands.add_parser("mirror", help="copy a container image to ECR")
    mirror_parser.add_argument("image")
    upload_parser = commands.add_parser("upload", help="upload a bundle for the fleet")
    upload_parser.add_argument("bundle")
    upload_parser.add_argument("triton", nargs=argparse.REMAINDER, help="options of `kivu triton`")
    for each in (key_parser, upload_parser):
        each.add_argument("--kivu", help="the `kivu` command [default: compiled if needed]")
    commands.add_parser("status", help="URL, buckets, alarms and queues")
    commands.add_parser("logs", help="follow the logs")
    commands.add_parser("undeploy", help="delete the deployment")
    options = parser.parse_args()
    try:
        COMMANDS[options.command](options)
    except (BotoCoreError, ClientError) as error:
        sys.exit(f"error: {explained(error)}")
    except KeyboardInterrupt:
        pass


def explained(error):
    """An error of AWS's SDK; for a missing setting, what to set."""
    if isinstance(error, NoRegionError):
        return "expected a region, but found none; set AWS_REGION, such as `export AWS_REGION=eu-west-1`"
    if isinstance(error, NoCredentialsError):
        return "expected AWS credentials, but found none; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return error


def outputs(stack):
    """The outputs of a stack."""
    found = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}


def settings(options):
    """Prints how to build the functions: as given, or as in the last `make deploy` of the stack."""
    given, recorded = given_parameters(options), parameters_of(options.stack)
    architecture = given.get("Architecture", options.architecture)
    if options.architecture not in (None, architecture):
        sys.exit(f"error: expected one architecture, but found ARCHITECTURE={options.architecture} and Architecture={architecture}")
    packed = options.packed
    if packed is None and described(options.stack):
        packed = recorded_bundles(options.stack, recorded["Packed"])
    onnx = options.onnx or recorded["PackedOnnx"]
    check_rules(recorded | given)
    variables = {
        "ARCHITECTURE": architecture or recorded["Architecture"],
        "PACKED": packed if packed is not None else str(BUILT / "minilm"),
        "ONNX": "yes" if onnx == "yes" else "",
        "PACKAGE": (recorded | given)["Package"],
    }
    print(shlex.join(f"{name}={value}" for name, value in variables.items()))


def recorded_bundles(stack, recorded):
    """The bundles that a stack serves, which must exist on this machine, or be among those that `make` builds."""
    fix = "give them with PACKED=\"FOLDER ...\""
    if not recorded:
        sys.exit(f"error: expected a record of the bundles that `{stack}` serves, but found none; {fix}")
    bundles = [] if recorded == "none" else recorded.split()
    for bundle in bundles:
        if Path(bundle).parent != BUILT and not (ROOT / bundle / "manifest.toml").is_file():
            sys.exit(f"error: expected the bundle `{bundle}`, which `{stack}` serves, but found no `{bundle}/manifest.toml`; {fix}")
    return " ".join(bundles)


def given_parameters(options):
    return dict(pair.partition("=")[::2] for pair in shlex.split(options.parameters))


def check_rules(parameters):
    """Refuses what the template's rules refuse, before anything is built or sent."""
    from samcli.yamlhelper import yaml_parse

    if parameters["Package"] not in ("zip", "image"):
        sys.exit(f"error: expected Package=zip or Package=image, but found Package={parameters['Package']}")
    for rule in yaml_parse(TEMPLATE.read_text())["Rules"].values():
        for assertion in rule["Assertions"]:
            if not holds(assertion["Assert"], parameters):
                sys.exit(f"error: {assertion['AssertDescription']}")


def holds(test, parameters):
    """Whether a test of a rule holds."""
    (kind, of), = test.items()
    value = lambda written: str(parameters[written["Ref"]] if isinstance(written, dict) else written)
    if kind == "Fn::Equals":
        return value(of[0]) == value(of[1])
    if kind == "Fn::Contains":
        return value(of[1]) in map(str, of[0])
    tests = [holds(one, parameters) for one in of]
    return {"Fn::Not": not tests[0], "Fn::And": all(tests), "Fn::Or": any(tests)}[kind]


def check(options):
    """Refuses contradictory parameters, and bundles that an archive or a function's memory cannot hold."""
    parameters = parameters_of(options.stack) | given_parameters(options)
    check_rules(parameters)
    sizes = [sum(file.stat().st_size for file in (ROOT / bundle).iterdir()) for bundle in options.packed.split()]
    if parameters["Package"] == "zip" and sum(sizes) > MAX_UNPACKED:
        sys.exit(f"error: Package=zip holds {MAX_UNPACKED >> 20} MB, but the packed bundles have {sum(sizes) / (1 << 20):.0f} MB; set Package=image, or pack fewer bundles")
    # With models on demand, a function unloads models for others.
    needed = (max if parameters["LoadModels"] == "on-demand" else sum)(sizes or [0])
    memories = {"Memory": True, "StreamingMemory": parameters["Streaming"] != "no", "BatchMemory": parameters["Batch"] == "yes"}
    for name in (name for name, is_used in memories.items() if is_used):
        if needed > int(parameters[name]) << 20:
            sys.exit(f"error: {name}={parameters[name]} cannot hold the packed bundles' {needed / (1 << 20):.0f} MB; set {name} to more, or pack fewer bundles")


def image(options):
    """Pushes the built functions as images, puts them into the built templates, and prints SAM's option for them."""
    parameters = given_parameters(options) if options.local else parameters_of(options.stack) | given_parameters(options)
    if parameters["Package"] != "image":
        return
    import image_stack
    from image import LAYOUT, ImageError, make
    from registry import Registry, RegistryError

    templates, folders = image_stack.packed(BUILT_STACK)
    try:
        made = {program: make(folder, program, parameters["Architecture"], options.base, LAYOUT / program) for program, folder in folders.items()}
        if options.local:
            return image_stack.replace(templates, {program: loaded(each, LAYOUT / f"{program}.tar") for program, each in made.items()}, snapshots=False)
        uri, password = ecr_repository(images_of(options.stack))
        pushed = {program: each.push(Registry(uri, password)) for program, each in made.items()}
    except (ImageError, RegistryError) as error:
        sys.exit(f"error: {error}")
    image_stack.replace(templates, pushed, parameters["SnapStart"] == "yes")
    print(f"--image-repository {uri}")


def loaded(made, archive):
    """The name of an image in Docker, which reads it from an archive."""
    made.save(archive)
    if subprocess.run(["docker", "load", "--input", archive], stdout=sys.stderr).returncode:
        sys.exit("error: `docker load` failed")
    return f"{made.name}:{made.architecture}"


def served(options):
    """Checks that aliases refer to the deployed configuration, since requests get their versions, and records these. Deletes
    old snapshots.
    """
    functions, stale = boto3.client("lambda"), []
    for alias in resources(options.stack, "AWS::Lambda::Alias"):
        name = alias.removesuffix(f":{ALIAS}")
        delete_old_snapshots(functions, name)
        latest, version = (functions.get_function_configuration(FunctionName=each) for each in (name, alias))
        differing = [field for field in CONFIGURATION if latest.get(field) != version.get(field)]
        if not differing:
            record(functions, name, int(version["Version"]))
        else:
            name = name.rpartition(":")[2]
            stale.append(
                f"error: expected requests to get the deployed {name}, but found version {version['Version']} with another "
                f"{', '.join(differing)}; publish it with `aws lambda publish-version --function-name {name}`, and name the "
                f"printed version in `aws lambda update-alias --function-name {name} --name {ALIAS} --function-version VERSION`"
            )
    if stale:
        sys.exit("\n".join(stale))


def recorded(functions, arn):
    """The versions of a function that requests got, in order; those of other programs' releases are missing."""
    return [int(number) for number in functions.list_tags(Resource=arn)["Tags"].get(SERVED, "").split()]


def record(functions, arn, served, left=None):
    """Records a version that requests get, and forgets one that they left."""
    numbers = sorted({*recorded(functions, arn), served} - {left})
    functions.tag_resource(Resource=arn, Tags={SERVED: " ".join(map(str, numbers[-MAX_SERVED:]))})


def previous(functions, arn, current):
    """The newest version before a version, without those that a release or `rollback` has returned from; none if there is none."""
    known = recorded(functions, arn)
    is_left = lambda number: number not in known and any(each < number for each in known) and any(each > number for each in known)
    numbers = (int(version["Version"]) for version in versions_of(functions, arn))
    return max((number for number in numbers if number < current and not is_left(number)), default=None)


def delete_old_snapshots(functions, name):
    """Deletes versions with snapshots, which cost until then, except for those in use and the one for `rollback`."""
    versions = [version for version in versions_of(functions, name) if version.get("SnapStart", {}).get("ApplyOn") == "PublishedVersions"]
    if not versions:
        return
    served = functions.get_alias(FunctionName=name, Name=ALIAS)
    used = {served["FunctionVersion"], *(served.get("RoutingConfig") or {}).get("AdditionalVersionWeights", {})}
    oldest = min(map(int, used))
    kept = previous(functions, name, oldest)
    for number in sorted(int(version["Version"]) for version in versions):
        if number < oldest and number != kept:
            functions.delete_function(FunctionName=name, Qualifier=str(number))


def versions_of(functions, name):
    """A function's published versions."""
    pages = functions.get_paginator("list_versions_by_function").paginate(FunctionName=name)
    return [version for page in pages for version in page["Versions"] if version["Version"].isdigit()]


def quotas(options):
    """Warns of quotas below what the deployment needs. A new account has 10 concurrent executions and no GPUs."""
    parameters = parameters_of(options.stack) | given_parameters(options)
    try:
        required = required_quotas(parameters)
    except (BotoCoreError, ClientError) as error:
        return print(f"skipped: cannot read the instance types of the fleet: {error}", file=sys.stderr)
    for (service, code), needed in required.items():
        try:
            quota = boto3.client("service-quotas").get_service_quota(ServiceCode=service, QuotaCode=code)["Quota"]
        except (BotoCoreError, ClientError) as error:
            print(f"skipped: cannot read the quota {code} of {service}: {error}", file=sys.stderr)
            continue
        if quota["Value"] < needed:
            print(
                f"warning: expected a quota of at least {needed} for `{quota['QuotaName']}`, but found "
                f"{quota['Value']:.0f}; request it with `aws service-quotas request-service-quota-increase "
                f"--service-code {service} --quota-code {code} --desired-value {needed}`",
                file=sys.stderr,
            )


def parameters_of(stack):
    """The parameters of a stack, or the template's defaults if it does not exist."""
    from samcli.yamlhelper import yaml_parse

    defaults = yaml_parse(TEMPLATE.read_text())["Parameters"]
    parameters = {name: str(parameter["Default"]) for name, parameter in defaults.items()}
    found = described(stack)
    return parameters | {each["ParameterKey"]: each["ParameterValue"] for each in (found or {}).get("Parameters", [])}


def described(stack):
    """A stack; nothing if it does not exist or was never deployed."""
    try:
        found = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError":
            raise
        return None
    return None if found.get("StackStatus") in ("REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE") else found


def required_quotas(parameters):
    """The quotas that a deployment with these parameters needs."""
    number = lambda name: int(parameters[name])
    reserved = max(number("ReservedConcurrency"), number("ProvisionedConcurrency")) + number("StreamingConcurrency")
    # One execution for each function behind the API; the queue and the state machine have BatchConcurrency each.
    has_large = bool(parameters["LargeModels"]) and parameters["LargeRunsOn"] == "functions"
    concurrency = 1 + has_large + (parameters["Streaming"] != "no") + (2 * number("BatchConcurrency") if parameters["Batch"] == "yes" else 0)
    required = {CONCURRENCY: max(concurrency, reserved + MIN_UNRESERVED if reserved else 0)}
    if parameters["Fleet"] == "yes":
        types = parameters["FleetTypes"].split(",")
        found = boto3.client("ec2").describe_instance_types(InstanceTypes=types)["InstanceTypes"]
        cpus = max(each["VCpuInfo"]["DefaultVCpus"] for each in found)
        on_demand = min(number("FleetOnDemand"), number("FleetMost"))
        required |= {ON_DEMAND_GPUS: on_demand * cpus, SPOT_GPUS: (number("FleetMost") - on_demand) * cpus}
    return {quota: needed for quota, needed in required.items() if needed}


def key(options):
    """Creates a key, adds its hash to the secret, and prints the key, which is stored nowhere."""
    secret = outputs(options.stack).get("Keys")
    if not secret:
        sys.exit("error: expected a deployment with AuthMode=keys, but found no secret of keys")
    lines = dict(line.split(": ", 1) for line in kivu(options, "key", options.name, *options.limits).splitlines())
    line = lines["line"].strip()
    # After a lost response, the line may be there.
    change_secret(secret, lambda known: known if line in known.splitlines() else f"{known.rstrip()}\n{line}\n")
    print(lines["key"].strip())
    print("It is valid within seconds; to revoke it, remove its line from the secret.", file=sys.stderr)


def change_secret(secret, changed):
    """Replaces a secret's text, and returns the new one. Nothing is lost if another operator replaces it at the same time."""
    secrets = boto3.client("secretsmanager")
    for _ in range(TRIES):
        current = secrets.get_secret_value(SecretId=secret)
        text = changed(current["SecretString"])
        if text == current["SecretString"]:
            return text
        version = secrets.put_secret_value(SecretId=secret, SecretString=text, VersionStages=[NEXT])["VersionId"]
        try:
            # Fails if the version that was read is no longer the current one; writing the text alone would replace any.
            secrets.update_secret_version_stage(
                SecretId=secret, VersionStage="AWSCURRENT", MoveToVersionId=version, RemoveFromVersionId=current["VersionId"]
            )
            return text
        except ClientError as error:
            if error.response["Error"]["Code"] != "InvalidParameterException":
                raise
            refusal = error
    raise refusal


def kivu(options, *arguments):
    """What a `kivu` command prints."""
    if not options.kivu:
        subprocess.run(["make", "--silent", "program"], cwd=ROOT, stdout=sys.stderr, check=True)
    made = subprocess.run([options.kivu or ROOT / "target/debug/kivu", *arguments], capture_output=True, text=True)
    if made.returncode:
        sys.exit(made.stderr.strip())
    return made.stdout


def rotate(options):
    """Replaces the secret that CloudFront sends. The functions accept the previous one until the next rotation."""
    found = outputs(options.stack)
    if "ProxySecret" not in found:
        sys.exit("error: expected a deployment with WebAclArn, but found no secret of CloudFront")
    secret, distribution = found["ProxySecret"], found["Distribution"]
    secrets, cloudfront = boto3.client("secretsmanager"), boto3.client("cloudfront")
    deployed = cloudfront.get_distribution_config(Id=distribution)
    headers = [header for origin in deployed["DistributionConfig"]["Origins"]["Items"] for header in origin["CustomHeaders"]["Items"]]
    headers = [header for header in headers if header["HeaderName"].lower() == PROXY_HEADER]
    if not headers:
        sys.exit(f"error: expected the distribution to send {PROXY_HEADER}, but found no such header")
    new = secrets.get_random_password(PasswordLength=64, ExcludePunctuation=True)["RandomPassword"]
    # After an interrupted rotation CloudFront has the previous value, which another rotation would make invalid.
    value = change_secret(secret, lambda value: new if all(header["HeaderValue"] == value for header in headers) else value)
    for header in headers:
        header["HeaderValue"] = value
    cloudfront.update_distribution(Id=distribution, IfMatch=deployed["ETag"], DistributionConfig=deployed["DistributionConfig"])
    print("CloudFront is updated, which takes some minutes", file=sys.stderr)
    cloudfront.get_waiter("distribution_deployed").wait(Id=distribution)
    print("CloudFront sends the new secret; the previous one is accepted until the next rotation")


def rollback(options):
    """Points the alias of the function to the version before the current one that requests got."""
    functions, name = boto3.client("lambda"), outputs(options.stack)["Function"]
    alias = functions.get_alias(FunctionName=name, Name=ALIAS)
    if (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights"):
        sys.exit("error: expected no release in progress, but found one; `aws deploy stop-deployment` rolls it back")
    current = int(alias["FunctionVersion"])
    arn = alias["AliasArn"].removesuffix(f":{ALIAS}")
    earlier = previous(functions, arn, current)
    if not earlier:
        sys.exit(f"error: expected a version before {current}, but found none")
    # Fails if a release has begun since the alias was read.
    functions.update_alias(FunctionName=name, Name=ALIAS, FunctionVersion=str(earlier), RevisionId=alias["RevisionId"])
    record(functions, arn, earlier, left=current)
    print(f"{name} is at version {earlier}, after {current}; the next `make deploy` with a change publishes another one")


def redrive(options):
    """Sends dead letters to the queue again, and resumes failed executions of the state machine."""
    found = outputs(options.stack)
    if "DeadLetters" not in found:
        sys.exit("error: expected a deployment with Batch=yes, but found no queue of failed files")
    sqs, states, sent = boto3.client("sqs"), boto3.client("stepfunctions"), 0
    count = sqs.get_queue_attributes(QueueUrl=found["DeadLetters"], AttributeNames=["ApproximateNumberOfMessages"])
    # Messages that fail again during the command are not sent again.
    count = int(count["Attributes"]["ApproximateNumberOfMessages"])
    while sent < count:
        # An interruption between the calls sends a message twice; files are complete after one of them.
        messages = sqs.receive_message(QueueUrl=found["DeadLetters"], MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
        for message in messages:
            sqs.send_message(QueueUrl=found["Uploads"], MessageBody=message["Body"])
            sqs.delete_message(QueueUrl=found["DeadLetters"], ReceiptHandle=message["ReceiptHandle"])
        sent += len(messages)
        if not messages:
            break
    pages = states.get_paginator("list_executions").paginate(stateMachineArn=found["LargeFiles"], statusFilter="FAILED")
    executions = [execution["executionArn"] for page in pages for execution in page["executions"]]
    resumed = sum(redriven(states, execution) for execution in executions)
    print(f"{sent} messages are in the queue again, {resumed} executions are resumed")
    if resumed < len(executions):
        print(f"{len(executions) - resumed} executions cannot be resumed, such as those older than 14 days; upload their files again")


def redriven(states, execution):
    """Resumes an execution; whether that is possible."""
    try:
        states.redrive_execution(executionArn=execution)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("ExecutionNotRedrivable", "ExecutionDoesNotExist"):
            raise
        return False
    return True


def repository_of(stack):
    """The name of the repository of `mirror`."""
    return f"{stack}-triton"


def images_of(stack):
    """The name of the repository for the functions' images."""
    return f"{stack}-functions"


def ecr_repository(name):
    """The URI of a repository, which is created if it does not exist, and its registry's password."""
    registry = boto3.client("ecr")
    try:
        registry.create_repository(
            repositoryName=name, imageTagMutability="IMMUTABLE", imageScanningConfiguration={"scanOnPush": True}
        )
    except ClientError as error:
        if error.response["Error"]["Code"] != "RepositoryAlreadyExistsException":
            raise
    token = registry.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    uri = registry.describe_repositories(repositoryNames=[name])["repositories"][0]["repositoryUri"]
    return uri, base64.b64decode(token).decode().partition(":")[2]


def mirror(options):
    """Copies an image to ECR, from which the fleet pulls it, and prints the parameter."""
    repository = repository_of(options.stack)
    tag = options.image.rpartition("/")[2].partition("@")[0].rpartition(":")[2]
    uri, password = ecr_repository(repository)
    target = f"{uri}:{tag}"
    for command, given in (
        (["login", "--username", "AWS", "--password-stdin", uri.partition("/")[0]], password),
        (["pull", "--platform", "linux/amd64", options.image], None),
        (["tag", options.image, target], None),
        (["push", target], None),
    ):
        if subprocess.run(["docker", *command], input=given, text=True).returncode:
            sys.exit(f"error: `docker {command[0]}` failed")
    pushed = boto3.client("ecr").describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])["imageDetails"][0]
    print(f"TritonImage={uri}@{pushed['imageDigest']}")


def upload(options):
    """Uploads a bundle to the repository of the fleet, which loads it within a minute."""
    bucket, s3 = outputs(options.stack)["ModelBucket"], boto3.client("s3")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "models"
        kivu(options, "triton", options.bundle, "--out", folder, *options.triton)
        # The configuration of a model is last, so that a new model is complete when Triton finds it.
        for file in sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: (file.name == "config.pbtxt", file)):
            name = f"triton/{file.relative_to(folder).as_posix()}"
            s3.upload_file(str(file), bucket, name)
            print(f"s3://{bucket}/{name}")


def status(options):
    found = outputs(options.stack)
    for name, value in sorted(found.items()):
        print(f"{name:<14}{value}")
    alarms = boto3.client("cloudwatch").describe_alarms(AlarmNamePrefix=f"{options.stack}-")["MetricAlarms"]
    for alarm in alarms:
        print(f"{alarm['StateValue']:<20}{alarm['AlarmName']}")
    sqs = boto3.client("sqs")
    for name in ("Uploads", "DeadLetters"):
        if name in found:
            waiting = sqs.get_queue_attributes(QueueUrl=found[name], AttributeNames=["ApproximateNumberOfMessages"])
            print(f"{waiting['Attributes']['ApproximateNumberOfMessages']:<20}messages in {name}")


def resources(stack, kind):
    """The names of the resources of a type in the deployment and its nested stacks."""
    pages = boto3.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    found = []
    for resource in (one for page in pages for one in page["StackResourceSummaries"]):
        if resource["ResourceType"] == kind:
            found.append(resource["PhysicalResourceId"])
        elif resource["ResourceType"] == "AWS::CloudFormation::Stack":
            found += resources(resource["PhysicalResourceId"], kind)
    return found


# How much later than others an event in the logs may arrive.
LATE_MS = 60_000


def logs(options):
    """Prints the logs of the last ten minutes and follows them until it is interrupted."""
    client, of = boto3.client("logs"), resources(options.stack, "AWS::Logs::LogGroup") or [parameters_of(options.stack)["LogGroup"]]
    since, seen = {group: int((time.time() - 600) * 1000) for group in of}, dict.fromkeys(of, frozenset())
    while True:
        events = []
        for group in of:
            pages = client.get_paginator("filter_log_events").paginate(logGroupName=group, startTime=since[group])
            found = {(event["timestamp"], event["message"], event.get("eventId")) for page in pages for event in page["events"]}
            events += [(at, group, message.rstrip()) for at, message, _ in found - seen[group]]
            seen[group] = found
            # Events may arrive after later ones.
            since[group] = max([since[group], *(at - LATE_MS for at, _, _ in found)])
        for timestamp, group, message in sorted(events):
            moment = datetime.fromtimestamp(timestamp / 1000, timezone.utc)
            print(f"{moment:%H:%M:%S} {group.rsplit('/', 1)[-1]}: {message}", flush=True)
        time.sleep(2)


def undeploy(options):
    client = boto3.client("cloudformation")
    client.delete_stack(StackName=options.stack)
    client.get_waiter("stack_delete_complete").wait(StackName=options.stack)
    for repository in (repository_of(options.stack), images_of(options.stack)):
        try:
            boto3.client("ecr").delete_repository(repositoryName=repository, force=True)
        except ClientError as error:
            if error.response["Error"]["Code"] != "RepositoryNotFoundException":
                raise
    print(f"{options.stack} is deleted, with its images in ECR; its buckets remain, with their objects")


COMMANDS = {
    "settings": settings, "check": check, "image": image, "quotas": quotas, "served": served, "key": key, "rotate": rotate, "rollback": rollback, "redrive": redrive, "mirror": mirror,
    "upload": upload, "status": status, "logs": logs, "undeploy": undeploy,
}

if __name__ == "__main__":
    main()
