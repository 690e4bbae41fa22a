"""Asks the official checkers what they think of `template.yaml` and of the state machine.

    python tests/deploy/validate.py CHECKOV

Needs the packages of tests/deploy/requirements.txt, and CHECKOV, the command of tests/deploy/checkov.txt, which has
an environment of its own because the two want different versions of the same packages. Exceptions stand in the
template, beside what they are about, with their reasons; one that is no longer needed is an error too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from template import FILE, ROOT, Template, source

BIN = Path(sys.executable).parent
STATE_MACHINES = sorted((ROOT / "functions").glob("*/*.asl.json"))
IMAGE = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton@sha256:0"
# Deployments of which the policies are read, since what they grant follows from what is deployed.
DEPLOYMENTS = (
    {},
    {"Batch": "yes", "Tracing": "PassThrough"},
    {"AuthMode": "iam", "LargeModels": "s3://b/models/m", "Batch": "yes", "Fleet": "yes", "TritonImage": IMAGE},
    {"LargeModels": "s3://b/models/m", "LargeRunsOn": "instances", "WebAclArn": "arn", "AlarmEmail": "a@b.c"},
)
# Actions that AWS lets be granted on `*` only, each said in the template beside its statement.
KNOW_NO_RESOURCE = ("xray:", "logs:", "ec2:", "ecr:GetAuthorizationToken", "cloudwatch:PutMetricData")

# What parliament objects to wrongly, and why that is wrong.
EXCUSED = (
    # Executions have ARNs of the form `execution:MACHINE:NAME`, too; it knows those of express machines only.
    r"RESOURCE_MISMATCH.*states:(Describe|Stop)Execution.*:express:",
    # A condition key of Lambda's that may be asked of every action that a function takes; AWS's own example.
    r"UNKNOWN_CONDITION_FOR_ACTION.*lambda:SourceFunctionArn",
    # Lambda asks with these before any interface has a name; the statement below denies them to the code.
    r"RESOURCE_STAR.*'ec2:CreateNetworkInterface', 'ec2:DeleteNetworkInterface'\]$",
)
# What statelint does not know: the forms that a Distributed Map reads, which the language has had since 2022.
UNKNOWN_TO_STATELINT = (r'^Field "(InputType|CSVHeaderLocation)" not allowed in .*\.ItemReader\.ReaderConfig$',)
# The role with which Lambda runs its Managed Instances: what it may do there is AWS's own to say.
THEIRS = {"arn:aws:iam::aws:policy/AWSLambdaManagedEC2ResourceOperator"}


def main():
    problems = []
    for check in (sam, cfn_lint, checkov, statelint, parliament, stars):
        found = check()
        print(f"{check.__name__}: {'no objection' if not found else f'{len(found)} objections'}")
        problems += [f"{check.__name__}: {line}" for line in found]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def run(*command):
    environment = os.environ | {"AWS_DEFAULT_REGION": "eu-west-1", "SAM_CLI_TELEMETRY": "0", "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)


def failing(result):
    return [] if result.returncode == 0 else [(result.stdout + result.stderr).strip()]


def sam():
    return failing(run(BIN / "sam", "validate", "--lint", "--template", FILE))


def cfn_lint():
    return failing(run(BIN / "cfn-lint", FILE))


def checkov():
    """It leaves out what the defaults leave out, so it gets every deployment as a template of other defaults."""
    problems, used = [], set()
    for given in DEPLOYMENTS:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(with_defaults(given))
            file.flush()
            result = run(sys.argv[1], "--skip-download", "--framework", "cloudformation", "--file", file.name, "--output", "json")
        report = json.loads(result.stdout)["results"]
        problems += [f"{one['resource']}: {one['check_id']} {one['check_name']}" for one in report["failed_checks"]]
        problems += [f"{error}: cannot be parsed" for error in report["parsing_errors"]]
        used |= {(one["resource"].rsplit(".", 1)[-1], one["check_id"]) for one in report["skipped_checks"]}
    for name, resource in source()["Resources"].items():
        for skip in resource.get("Metadata", {}).get("checkov", {}).get("skip", []):
            if not skip.get("comment"):
                problems.append(f"{name}: {skip['id']} is skipped without a reason")
            if (name, skip["id"]) not in used:
                problems.append(f"{name}: {skip['id']} would not object; remove its exception")
    return problems


def with_defaults(given):
    """The template's text, with other defaults for its parameters."""
    text = FILE.read_text()
    for name, value in given.items():
        text, count = re.subn(rf"(\n  {name}:\n    Type: .*\n    Default: ).*", rf"\g<1>{json.dumps(value)}", text)
        assert count == 1, f"{name} has no default that could be found"
    return text


def statelint():
    problems = []
    for file in STATE_MACHINES:
        result = run(BIN / "statelint", file)
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
        if result.returncode and not lines:
            problems.append(result.stderr.strip())
        # It counts before it tells, in a line of its own.
        told = [line for line in lines if not re.fullmatch(r"(\d+|One) errors?:", line)]
        problems += [line for line in told if not any(re.search(pattern, line) for pattern in UNKNOWN_TO_STATELINT)]
    return problems


def parliament():
    # By its library, since its command reads one policy a process.
    from parliament import analyze_policy_string

    problems = []
    for role, document in policies():
        findings = analyze_policy_string(json.dumps(document)).findings
        problems += [f"{role}: {one.issue} {one.detail}" for one in findings if not excused(one)]
    return problems


def excused(finding):
    """What parliament does not know, or what the template gives its reason for."""
    said = f"{finding.issue} {finding.detail}"
    return any(re.search(pattern, said) for pattern in EXCUSED)


def stars():
    """No role has a `*` for a resource, and none for an action, where AWS knows anything narrower."""
    problems = []
    for role, document in policies():
        for statement in document["Statement"]:
            if statement["Effect"] != "Allow":
                continue
            actions, resources = as_list(statement["Action"]), as_list(statement["Resource"])
            problems += [f"{role}: the action {action}" for action in actions if "*" in action]
            if "*" in resources:
                problems += [f"{role}: {action} on *" for action in actions if not action.startswith(KNOW_NO_RESOURCE)]
    return problems


def policies():
    """The inline policies of every role, of every deployment, once each."""
    seen = {}
    for given in DEPLOYMENTS:
        for role, properties in Template(given).of_type("AWS::IAM::Role").items():
            for policy in properties.get("Policies", []):
                document = policy["PolicyDocument"]
                seen.setdefault(json.dumps([role, policy["PolicyName"], document]), (f"{role}/{policy['PolicyName']}", document))
            for arn in set(properties.get("ManagedPolicyArns", [])) - THEIRS:
                raise SystemExit(f"error: {role} has the managed policy {arn}, which names no resources of this stack")
    return seen.values()


def as_list(value):
    return value if isinstance(value, list) else [value]


if __name__ == "__main__":
    sys.exit(main())
