"""Operates a deployment: keys, status, logs, removal.

    python functions/operate.py STACK key NAME --kivu KIVU
    python functions/operate.py STACK status
    python functions/operate.py STACK logs
    python functions/operate.py STACK undeploy

`make key`, `make status`, `make logs` and `make undeploy` run it, with the credentials and the region of the
environment.
"""

import argparse
import subprocess
import sys
import time
from datetime import datetime, timezone

import boto3
from botocore.exceptions import BotoCoreError, ClientError


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack")
    commands = parser.add_subparsers(dest="command", required=True)
    key_parser = commands.add_parser("key", help="create an API key")
    key_parser.add_argument("name")
    key_parser.add_argument("--kivu", required=True, help="the `kivu` command")
    commands.add_parser("status", help="URL, buckets, alarms and queues")
    commands.add_parser("logs", help="follow the logs")
    commands.add_parser("undeploy", help="delete the deployment")
    options = parser.parse_args()
    try:
        {"key": key, "status": status, "logs": logs, "undeploy": undeploy}[options.command](options)
    except (BotoCoreError, ClientError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        pass


def outputs(stack):
    """The outputs of a stack."""
    found = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in found.get("Outputs", [])}


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
