"""Runs the official checkers on `template.yaml`, its nested templates, the example templates and the state machine.

    python tests/deploy/validate.py CHECKOV

Needs the packages of tests/deploy/requirements.txt, and CHECKOV, the command of tests/deploy/checkov.txt, which has
its own environment because the two need different versions of the same packages. Accepted findings are in the
templates, at the resources that they are about, with the reason; an exception that is no longer needed is an error.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from samcli.yamlhelper import yaml_dump

from template import EVERYTHING, FILES, IMAGE, ROOT, Template, source

BIN = Path(sys.executable).parent
# Stacks that are deployed on their own, checked with the defaults of their parameters.
EXAMPLES = [*sorted((ROOT / "deploy").glob("*/*.yaml")), ROOT / "examples/python-lambda/template.yaml"]
STATE_MACHINES = sorted((ROOT / "functions").glob("*/*.asl.json"))
# Together these deploy every resource, and every variant of each policy.
DEPLOYMENTS = (
    {},
    EVERYTHING,
    {"Batch": "yes", "BatchSink": "arn:aws:s3vectors:eu-west-1:000000000000:bucket/vectors/index/docs", "Tracing": "Active", "FunctionUrl": "unlimited", "Streaming": "unlimited"},
    {"AuthMode": "iam", "LargeModels": "s3://b/models/m", "Batch": "yes", "Fleet": "yes", "TritonImage": IMAGE, "FunctionUrl": "unlimited", "Streaming": "rest"},
    {"LargeModels": "s3://b/models/m", "LargeRunsOn": "instances", "LargeMemory": "4096", "Tracing": "Active", "WebAclArn": "arn", "AlarmEmail": "a@b.c"},
    {"AuthMode": "jwt", "JwtIssuer": "https://a.b", "JwtAudience": "c", "CorsOrigins": "https://a.b", "VpcSubnets": "subnet-1", "VpcSecurityGroups": "sg-1"},
    EVERYTHING | {"LogGroup": "kivu"},
    {"Streaming": "url", "StreamingConcurrency": "2", "KeyQuotas": "yes", "CorsOrigins": "https://a.b", "Tracing": "Active", "LogGroup": "kivu",
     "KmsKeyArn": EVERYTHING["KmsKeyArn"], "PermissionsBoundary": EVERYTHING["PermissionsBoundary"]},
    {"DomainName": "a.b", "CertificateArn": "arn:aws:acm:eu-west-1:000000000000:certificate/a", "HostedZoneId": "Z1", "Fleet": "yes", "TritonImage": IMAGE},
)
# Actions without resource-level permissions in AWS; the templates say so at each statement.
WITHOUT_RESOURCE = ("xray:", "logs:", "ec2:", "ecr:GetAuthorizationToken", "cloudwatch:PutMetricData",
                    "codedeploy:PutLifecycleEventHookExecutionStatus")

# Wrong findings of parliament, and why they are wrong.
EXCUSED = (
    # Its list of services is older than S3 Vectors.
    r"UNKNOWN_PREFIX.*s3vectors$",
    # Executions of standard machines have ARNs of the form `execution:MACHINE:NAME`; it accepts only those of express machines.
    r"RESOURCE_MISMATCH.*states:(Describe|Stop)Execution.*:express:",
    # A condition key of Lambda that applies to every action of a function's role; from AWS's own example.
    r"UNKNOWN_CONDITION_FOR_ACTION.*lambda:SourceFunctionArn",
    # Lambda makes these calls before a network interface exists; the statement below denies them to the code.
    r"RESOURCE_STAR.*'ec2:CreateNetworkInterface', 'ec2:DeleteNetworkInterface'\]$",
)
# Fields of Distributed Map readers, in the language since 2022, which statelint does not know.
UNKNOWN_TO_STATELINT = (r'^Field "InputType" not allowed in .*\.ItemReader\.ReaderConfig$',)
# The policy of the role with which Lambda runs Managed Instances, maintained by AWS.
FROM_AWS = {"arn:aws:iam::aws:policy/AWSLambdaManagedEC2ResourceOperator"}


def main():
    deployments = [Template(given) for given in DEPLOYMENTS]
    problems = []
    for check in (sam, cfn_lint, checkov, statelint, parliament, stars, everything_is_deployed):
        found = check(deployments)
        print(f"{check.__name__}: {'no findings' if not found else f'{len(found)} findings'}")
        problems += [f"{check.__name__}: {line}" for line in found]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def run(*command):
    environment = os.environ | {"AWS_DEFAULT_REGION": "eu-west-1", "SAM_CLI_TELEMETRY": "0", "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)


def failing(result):
    return [] if result.returncode == 0 else [(result.stdout + result.stderr).strip()]


def sam(_):
    return failing(run(BIN / "sam", "validate", "--lint", "--template", FILES[0])) + failing(run(BIN / "sam", "validate", "--lint", "--template", EXAMPLES[-1]))


def cfn_lint(_):
    return failing(run(BIN / "cfn-lint", *FILES, *EXAMPLES))


def checkov(deployments):
    """checkov evaluates conditions with the defaults of parameters, so it gets each deployment as other defaults."""
    given = {}
    for deployment in deployments:
        for template in deployment.templates():
            written = with_defaults(template)
            given.setdefault(written, template.file)
    problems, used = [], set()
    with tempfile.TemporaryDirectory() as folder:
        for number, (written, file) in enumerate(given.items()):
            Path(folder, f"{file.stem}-{number}.yaml").write_text(written)
        for file in EXAMPLES:
            Path(folder, file.name).write_text(file.read_text())
        result = run(sys.argv[1], "--skip-download", "--framework", "cloudformation", "--directory", folder, "--output", "json")
    report = json.loads(result.stdout)["results"]
    problems += [f"{one['resource']}: {one['check_id']} {one['check_name']}" for one in report["failed_checks"]]
    problems += [f"{error}: cannot be parsed" for error in report["parsing_errors"]]
    used |= {(one["resource"].rsplit(".", 1)[-1], one["check_id"]) for one in report["skipped_checks"]}
    for file in [*FILES, *EXAMPLES]:
        for name, resource in source(file)["Resources"].items():
            for skip in resource.get("Metadata", {}).get("checkov", {}).get("skip", []):
                if not skip.get("comment"):
                    problems.append(f"{name}: {skip['id']} is skipped without a reason")
                if (name, skip["id"]) not in used:
                    problems.append(f"{name}: checkov does not report {skip['id']}; remove its exception")
    return sorted(set(problems))


def with_defaults(template):
    """The text of a template, with the values of a deployment's parameters as their defaults."""
    written = source(template.file)
    for name, parameter in written["Parameters"].items():
        value = template.parameters[name]
        parameter["Default"] = ",".join(value) if isinstance(value, list) else value
    return yaml_dump(written)


def statelint(_):
    problems = []
    for file in STATE_MACHINES:
        result = run(BIN / "statelint", file)
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
        if result.returncode and not lines:
            problems.append(result.stderr.strip())
        # The first line is the number of findings.
        findings = [line for line in lines if not re.fullmatch(r"(\d+|One) errors?:", line)]
        problems += [line for line in findings if not any(re.search(pattern, line) for pattern in UNKNOWN_TO_STATELINT)]
    return problems


def parliament(deployments):
    # As a library, since the command checks one policy per process.
    from parliament import analyze_policy_string

    problems = []
    for role, document in policies(deployments):
        findings = analyze_policy_string(json.dumps(document)).findings
        problems += [f"{role}: {one.issue} {one.detail}" for one in findings if not excused(one)]
    return problems


def excused(finding):
    return any(re.search(pattern, f"{finding.issue} {finding.detail}") for pattern in EXCUSED)


def stars(deployments):
    """No role has `*` as an action, or as a resource where AWS has resource-level permissions."""
    problems = []
    for role, document in policies(deployments):
        for statement in document["Statement"]:
            if statement["Effect"] != "Allow":
                continue
            actions, resources = as_list(statement["Action"]), as_list(statement["Resource"])
            problems += [f"{role}: the action {action}" for action in actions if "*" in action]
            if "*" in resources:
                problems += [f"{role}: {action} on *" for action in actions if not action.startswith(WITHOUT_RESOURCE)]
    return problems


def everything_is_deployed(deployments):
    """DEPLOYMENTS cover every resource, or the checks above would not see them."""
    written = {name for file in FILES for name, resource in source(file)["Resources"].items()
               if resource["Type"] != "AWS::CloudFormation::Stack"}
    deployed = {name for deployment in deployments for name in deployment.resources}
    return [f"{name} is in no deployment" for name in sorted(written - deployed)]


def policies(deployments):
    """The policies of every role in every deployment, without repetition."""
    seen = {}
    for deployment in deployments:
        for role, documents in deployment.policies().items():
            for document in documents:
                if isinstance(document, dict):
                    seen.setdefault(json.dumps([role, document]), (role, document))
                elif document not in FROM_AWS:
                    raise SystemExit(f"error: {role} has the managed policy {document}, which is not limited to this deployment")
    return seen.values()


def as_list(value):
    return value if isinstance(value, list) else [value]


if __name__ == "__main__":
    sys.exit(main())
