"""Runs `make deploy` with stubs of SAM and of the commands that call AWS, and checks what they are given."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Each stub records its variables and arguments. `settings` is what operate.py printed.
SAM = """#!/bin/bash
echo "sam region=$AWS_DEFAULT_REGION packed=$PACKED onnx=$ONNX architecture=$ARCHITECTURE package=$PACKAGE $*" >>FOLDER/calls
"""
PYTHON = """#!/bin/bash
echo "operate region=$AWS_DEFAULT_REGION $*" >>FOLDER/calls
case "$*" in
  *" settings "*) cat FOLDER/settings || exit 1 ;;
  *" image "*"Package=image"*) test "$AWS_REGION" != broken && echo "--image-repository REPOSITORY" ;;
esac
"""


def deploy(settings, *variables, **environment):
    """The calls of `make deploy`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command, text in (("sam", SAM), ("python", PYTHON)):
            (folder / command).write_text(text.replace("FOLDER", name))
            (folder / command).chmod(0o755)
        for bundle in ("one", "two"):
            (folder / bundle).mkdir()
            (folder / bundle / "manifest.toml").touch()
        if settings:
            (folder / "settings").write_text(settings.replace("FOLDER", name))
        given = [f"DEPLOY={folder}", "DEPLOY_TOOLS=", "LAMBDA_TOOLS=", "KIVU=true", *variables]
        kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        command = ["make", "--old-file=program", "deploy", *(each.replace("FOLDER", name) for each in given)]
        done = subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True)
        calls = folder / "calls"
        return done.returncode, calls.read_text().replace(name, "FOLDER") if calls.exists() else done.stderr


def expect(what, holds, found):
    if not holds:
        sys.exit(f"expected {what}, but found {found}")


def main():
    remembered = "ARCHITECTURE=x86_64 'PACKED=FOLDER/one FOLDER/two' ONNX=yes PACKAGE=zip"
    status, calls = deploy(remembered, "PARAMETERS=Memory=1024", AWS_REGION="eu-west-3")
    expect("success", status == 0, calls)
    build, release = (next(line for line in calls.splitlines() if f" {verb} " in line) for verb in ("build", "deploy"))
    expect("the recorded build", "packed=FOLDER/one FOLDER/two onnx=yes architecture=x86_64 package=zip" in build, build)
    expect("no option for images", " deploy --stack-name" in release, release)
    steps = [line.replace("operate.py --stack kivu ", "package=zip ").partition("package=zip ")[2].split()[0] for line in calls.splitlines()]
    expect("the steps in this order", steps == ["settings", "check", "build", "quotas", "image", "deploy", "served"], steps)
    expect("a check of the bundles", "check Memory=1024 --packed FOLDER/one FOLDER/two" in calls, calls)
    expect("a record of it", 'Architecture=x86_64 Packed="FOLDER/one FOLDER/two" PackedOnnx=yes Memory=1024' in release, release)
    expect("no settings of its own", "settings Memory=1024\n" in calls, calls)
    expect("a check of the aliases at the end", calls.splitlines()[-1].endswith("operate.py --stack kivu served"), calls)
    for line in calls.splitlines():
        expect("AWS_REGION in every call", "region=eu-west-3 " in line, line)

    status, calls = deploy(remembered, "PACKED=FOLDER/one", "ONNX=1", "ARCHITECTURE=arm64", AWS_DEFAULT_REGION="eu-west-1")
    given = "settings  --packed FOLDER/one --architecture arm64 --onnx yes"
    expect("the given settings", given in calls and "region=eu-west-1 " in calls, calls)
    status, calls = deploy("ARCHITECTURE=arm64 PACKED= ONNX=yes", "PACKED=")
    expect("a record that nothing is packed", "settings  --packed " in calls and 'Packed="none" PackedOnnx=yes' in calls, calls)
    image = remembered.replace("zip", "image")
    status, calls = deploy(image, "PARAMETERS=Package=image", "BASE=registry/base:1")
    expect("a build for images", "package=image build" in calls, calls)
    expect("their base, and all parameters", 'image Architecture=x86_64 Packed="FOLDER/one FOLDER/two" PackedOnnx=yes Package=image --base registry/base:1' in calls, calls)
    expect("SAM's option", "deploy --image-repository REPOSITORY --stack-name" in calls, calls)
    status, calls = deploy(image, "PARAMETERS=Package=image", AWS_REGION="broken")
    expect("no deployment without the images", status != 0 and " deploy " not in calls, calls)
    status, calls = deploy(None)
    expect("no build after a refusal", status != 0 and "build" not in calls, calls)

    # Without AWS_REGION in boto3, the region of a profile would be used.
    with tempfile.NamedTemporaryFile("w") as profile:
        profile.write("[default]\nregion = us-east-1\n")
        profile.flush()
        code = "import boto3, operate; print(boto3.client('lambda').meta.region_name)"
        environment = {"PATH": os.environ["PATH"], "AWS_CONFIG_FILE": profile.name, "AWS_REGION": "eu-west-3"}
        found = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT / "functions", env=environment, capture_output=True, text=True)
        expect("boto3 to use AWS_REGION", found.stdout == "eu-west-3\n", found.stdout + found.stderr)


if __name__ == "__main__":
    main()
