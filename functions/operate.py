"""Operates a deployment: quotas, keys, status, logs, removal.

    python functions/operate.py STACK quotas [PARAMETERS]
    python functions/operate.py STACK key NAME --kivu KIVU
    python functions/operate.py STACK status
    python functions/operate.py STACK logs
    python functions/operate.py STACK undeploy

`make deploy`, `make key`, `make status`, `make logs` and `make undeploy` run it, with the credentials and the region of the
environment.
"""

import argparse
import shlex
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

TEMPLATE = Path(__file__).resolve().parents[1] / "template.yaml"
# Lambda keeps this much concurrency out of reservations.
MIN_UNRESERVED = 100
CONCURRENCY = ("lambda", "L-B99A9384")
ON_DEMAND_GPUS, SPOT_GPUS = ("ec2", "L-DB2E81BA"), ("ec2", "L-3819A6DF")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack")
    commands = parser.add_subparsers(dest="command", required=True)
    quotas_parser = commands.add_parser("quotas", help="compare the account's quotas with what the deployment needs")
    quotas_parser.add_argument("parameters", nargs="?", default="", help="parameters of the template: 'NAME=VALUE ...'")
    key_parser = commands.add_parser("key", help="create an API key")
    key_parser.add_argument("name")
    key_parser.add_argument("--kivu", required=True, help="the `kivu` command")
    commands.add_parser("status", help="URL, buckets, alarms and queues")
    commands.add_parser("logs", help="follow the logs")
    commands.add_parser("undeploy", help="delete the deployment")
    options = parser.parse_args()
    try:
        {"quotas": quotas, "key": key, "status": status, "logs": logs, "undeploy": undeploy}[options.command](options)
    except (BotoCoreError, ClientError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        pass


def outputs(stack):
    """The outputs of a stack."""
    found = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}


def quotas(options):
    """Warns of quotas below what the deployment needs. A new account has 10 concurrent executions and no GPUs."""
    parameters = parameters_of(options.stack) | dict(pair.partition("=")[::2] for pair in shlex.split(options.parameters))
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
    try:
        found = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError:
        return parameters
    return parameters | {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", [])}


def required_quotas(parameters):
    """The quotas that a deployment with these parameters needs."""
    number = lambda name: int(parameters[name])
    reserved = max(number("ReservedConcurrency"), number("ProvisionedConcurrency"))
    # One execution for each function beyond those of batch jobs.
    concurrency = 1 + (number("BatchConcurrency") if parameters["Batch"] == "yes" else 0)
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
    made = subprocess.run([options.kivu, "key", options.name], capture_output=True, text=True)
    if made.returncode:
        sys.exit(made.stderr.strip())
    lines = dict(line.split(": ", 1) for line in made.stdout.splitlines())
    secrets = boto3.client("secretsmanager")
    known = secrets.get_secret_value(SecretId=secret)["SecretString"]
    secrets.put_secret_value(SecretId=secret, SecretString=f"{known.rstrip()}\n{lines['line'].strip()}\n")
    print(lines["key"].strip())
    print("It is valid within seconds; to revoke it, remove its line from the secret.", file=sys.stderr)


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


def groups(stack):
    """The log groups of the deployment and its nested stacks."""
    pages = boto3.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    found = []
    for resource in (one for page in pages for one in page["StackResourceSummaries"]):
        if resource["ResourceType"] == "AWS::Logs::LogGroup":
            found.append(resource["PhysicalResourceId"])
        elif resource["ResourceType"] == "AWS::CloudFormation::Stack":
            found += groups(resource["PhysicalResourceId"])
    return found


def logs(options):
    """Prints the logs of the last ten minutes and follows them until it is interrupted."""
    client, of = boto3.client("logs"), groups(options.stack)
    since = {group: int((time.time() - 600) * 1000) for group in of}
    while True:
        events = []
        for group in of:
            pages = client.get_paginator("filter_log_events").paginate(logGroupName=group, startTime=since[group])
            found = [event for page in pages for event in page["events"]]
            if found:
                since[group] = max(event["timestamp"] for event in found) + 1
            events += [(event["timestamp"], group, event["message"].rstrip()) for event in found]
        for timestamp, group, message in sorted(events):
            moment = datetime.fromtimestamp(timestamp / 1000, timezone.utc)
            print(f"{moment:%H:%M:%S} {group.rsplit('/', 1)[-1]}: {message}", flush=True)
        time.sleep(2)


def undeploy(options):
    client = boto3.client("cloudformation")
    client.delete_stack(StackName=options.stack)
    client.get_waiter("stack_delete_complete").wait(StackName=options.stack)
    print(f"{options.stack} is deleted; its buckets remain, with their objects")


if __name__ == "__main__":
    main()
