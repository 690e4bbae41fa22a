"""Creates the stack with all optional parts in the emulator, and deletes it.

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

BUCKET, STACK, CREATE_S = "packages", "everything", 120


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


def main():
    log = Path(tempfile.mkstemp(suffix=".log")[1])
    with Emulator(log, accept_unknown_types=True) as emulator:
        s3, stacks = emulator.client("s3"), emulator.client("cloudformation")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        code = io.BytesIO()
        with zipfile.ZipFile(code, "w") as archive:
            archive.writestr("bootstrap", "#!/bin/sh\n")
        s3.put_object(Bucket=BUCKET, Key="code.zip", Body=code.getvalue())
        for file in FILES:
            s3.put_object(Bucket=BUCKET, Key=file.name, Body=packaged(file).encode())
        zone = emulator.client("route53").create_hosted_zone(Name="a.b", CallerReference="a")["HostedZone"]["Id"]
        given = EVERYTHING | {
            "HostedZoneId": zone.rpartition("/")[2], "KmsKeyArn": emulator.client("kms").create_key()["KeyMetadata"]["Arn"],
        }
        stacks.create_stack(
            StackName=STACK, TemplateURL=f"https://s3.amazonaws.com/{BUCKET}/{FILES[0].name}",
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        )
        end = time.monotonic() + CREATE_S
        while (stack := stacks.describe_stacks(StackName=STACK)["Stacks"][0])["StackStatus"] == "CREATE_IN_PROGRESS":
            if time.monotonic() > end:
                break
            time.sleep(0.5)
        if stack["StackStatus"] != "CREATE_COMPLETE":
            events = stacks.describe_stack_events(StackName=STACK)["StackEvents"]
            failed = [f"{one['LogicalResourceId']}: {one.get('ResourceStatusReason')}" for one in events if "FAILED" in one["ResourceStatus"]]
            sys.exit("\n".join([stack["StackStatus"], *failed, log.read_text(errors="replace")[-3000:]]))
        resources = stacks.describe_stack_resources(StackName=STACK)["StackResources"]
        nested = [one for one in resources if one["ResourceType"] == NESTED]
        print(f"created, with {len(nested)} nested stacks")
        for line in sorted({line for line in log.read_text(errors="replace").splitlines() if line.startswith(UNKNOWN)}):
            print(line)
    log.unlink()


if __name__ == "__main__":
    main()
