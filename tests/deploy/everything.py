"""Creates the stack with all optional parts in the emulator, and changes parameters of another one.

The templates are uploaded as `sam package` does, with a placeholder for the code. Types that the emulator lacks are
accepted without effect, and printed.
"""

import io
import json
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from emulator import UNKNOWN, Emulator
from samcli.yamlhelper import yaml_dump
from template import EVERYTHING, FILES, NESTED, ROOT, source

BUCKET, STACK, WAIT_S = "packages", "everything", 120


def packaged(file):
    """A template whose local paths are objects in the bucket."""
    written = source(file)
    code = written.get("Globals", {}).get("Function", {})
    if "CodeUri" in code:
        code["CodeUri"] = f"s3://{BUCKET}/code.zip"
    for resource in written["Resources"].values():
        properties = resource.get("Properties", {})
        if "CodeUri" in properties:
            properties["CodeUri"] = f"s3://{BUCKET}/code.zip"
        if "DefinitionUri" in properties:
            properties["Definition"] = json.loads((file.parent / properties.pop("DefinitionUri")).read_text())
        if resource["Type"] == NESTED:
            properties["TemplateURL"] = f"https://s3.amazonaws.com/{BUCKET}/{Path(properties['TemplateURL']).name}"
    return yaml_dump(written)


def apply(stacks, action, name, given, log):
    """Creates or updates a stack and waits for it."""
    getattr(stacks, f"{action}_stack")(
        StackName=name, TemplateURL=f"https://s3.amazonaws.com/{BUCKET}/{FILES[0].name}",
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
        Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
    )
    end, running = time.monotonic() + WAIT_S, f"{action.upper()}_IN_PROGRESS"
    while (stack := stacks.describe_stacks(StackName=name)["Stacks"][0])["StackStatus"].startswith(running):
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    if stack["StackStatus"] != f"{action.upper()}_COMPLETE":
        events = stacks.describe_stack_events(StackName=name)["StackEvents"]
        failed = [f"{one['LogicalResourceId']}: {one.get('ResourceStatusReason')}" for one in events if "FAILED" in one["ResourceStatus"]]
        sys.exit("\n".join([stack["StackStatus"], *failed, log.read_text(errors="replace")[-3000:]]))


def upload(emulator):
    s3 = emulator.client("s3")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("bootstrap", "#!/bin/sh\n")
    s3.put_object(Bucket=BUCKET, Key="code.zip", Body=code.getvalue())
    for file in FILES:
        s3.put_object(Bucket=BUCKET, Key=file.name, Body=packaged(file).encode())


def aliases_serve_changed_parameters(emulator, stacks, log):
    """Changes parameters of a stack, and checks the version that requests get."""
    # The emulator cannot update log groups of nested stacks.
    given = {"LargeModels": "s3://b/models/m", "AuthMode": "none", "LogGroup": "logs", "Streaming": "rest"}
    changed = {"Memory": "1024", "LargeMemory": "2048", "StreamingMemory": "2048", "AuthMode": "keys"}
    apply(stacks, "create", "changing", given, log)
    apply(stacks, "update", "changing", given | changed, log)
    for function, memory in (("api", changed["Memory"]), ("large", changed["LargeMemory"]), ("stream", changed["StreamingMemory"])):
        served = emulator.client("lambda").get_function_configuration(FunctionName=f"changing-{function}", Qualifier="live")
        found = str(served["MemorySize"]), served["Environment"]["Variables"]["KIVU_AUTH__MODE"]
        if found != (memory, changed["AuthMode"]):
            sys.exit(f"expected the alias of {function} to serve {changed}, but found {found}")


def main():
    log = Path(tempfile.mkstemp(suffix=".log")[1])
    with Emulator(log, accept_unknown_types=True) as emulator:
        stacks = emulator.client("cloudformation")
        upload(emulator)
        zone = emulator.client("route53").create_hosted_zone(Name="a.b", CallerReference="a")["HostedZone"]["Id"]
        given = EVERYTHING | {
            "HostedZoneId": zone.rpartition("/")[2], "KmsKeyArn": emulator.client("kms").create_key()["KeyMetadata"]["Arn"],
        }
        apply(stacks, "create", STACK, given, log)
        resources = stacks.describe_stack_resources(StackName=STACK)["StackResources"]
        nested = [one for one in resources if one["ResourceType"] == NESTED]
        print(f"created, with {len(nested)} nested stacks")
        for line in sorted({line for line in log.read_text(errors="replace").splitlines() if line.startswith(UNKNOWN)}):
            print(line)
        aliases_serve_changed_parameters(emulator, stacks, log)
    log.unlink()


if __name__ == "__main__":
    main()
