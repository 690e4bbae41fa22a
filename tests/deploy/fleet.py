"""Runs the start script of the fleet's instances with stubs of AWS, Docker and Triton, and checks the properties of the
group that the emulator does not have.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from template import Template

DIGEST = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton@sha256:" + "0" * 64
# Each stub records its arguments. Triton is ready unless TRITON says otherwise.
STUBS = {
    "aws": 'case "$*" in *file://*) cp /FOLDER/tmp/fleet-start.json /FOLDER/sent.json;; esac; echo password',
    "docker": '[ "$1" = run ] && exit ${DOCKER:-0}; cat >/dev/null',
    "curl": 'case "$*" in *instance-id*) echo i-1;; *health*) exit ${TRITON:-0};; *) echo token;; esac',
    "systemd-run": "true",
    "sleep": "true",
}


def start(script, **variables):
    """The commands that the script runs, and the text that it sends to the log."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("bin", "tmp", "var/log", "usr/local/bin"):
            (folder / each).mkdir(parents=True)
        for command, body in STUBS.items():
            stub = folder / "bin" / command
            stub.write_text(f'#!/bin/bash\necho "{command} $*" >>{folder}/commands\n' + body.replace("/FOLDER", name) + "\n")
            stub.chmod(0o755)
        for path in ("/tmp/fleet-start", "/var/log/", "/usr/local/bin/"):
            script = script.replace(path, f"{folder}{path}")
        environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}"} | variables
        status = subprocess.run(["bash", "-c", script], env=environment, check=False).returncode
        sent = json.loads((folder / "sent.json").read_text())
        return status, (folder / "commands").read_text(), sent[0]["message"]


def expect(what, holds):
    if not holds:
        sys.exit(f"expected {what}")


def main():
    fleet = Template({"Fleet": "yes", "TritonImage": DIGEST})
    script = fleet.properties("Machine")["LaunchTemplateData"]["UserData"]
    status, commands, _ = start(script)
    expect("success", status == 0 and "--unique-id i-1 --status SUCCESS" in commands)
    expect("the image of the parameter", f"{DIGEST} tritonserver --model-repository=s3://modelbucket/triton " in commands)
    status, commands, log = start(script, DOCKER="7")
    expect("a failure of Docker to be reported", status == 7 and "--status FAILURE" in commands)
    status, commands, log = start(script, TRITON="22")
    expect("an unready Triton to be reported", status == 1 and "--status FAILURE" in commands and "15 minutes" in log)

    group = fleet.resources["FleetGroup"]
    # With ELB, an instance that is not ready would be replaced by another one that is not ready, indefinitely.
    expect("no replacement of unready instances", group["Properties"]["HealthCheckType"] == "EC2")
    for most in ("1", "2"):
        group = Template({"Fleet": "yes", "TritonImage": DIGEST, "FleetMost": most}).resources["FleetGroup"]
        policy = group["UpdatePolicy"]["AutoScalingRollingUpdate"]
        expect("fewer instances in service than MaxSize", policy["MinInstancesInService"] < int(group["Properties"]["MaxSize"]))
        expect("updates that wait for signals", policy["WaitOnResourceSignals"] is True)


if __name__ == "__main__":
    main()
