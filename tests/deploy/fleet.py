"""Runs the scripts of the fleet's instances with stubs of AWS, Docker and Triton, and checks the properties of the group
that the emulator does not have.
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
    "docker": '[ "$1" = pull ] && exit ${DOCKER:-0}; cat >/dev/null',
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


# Stubs for the program that runs Triton: each call takes the next line of a file, and the last one ends the program.
SEQUENCES = {
    "aws": "head -n 1 /FOLDER/objects; sed -i 1d /FOLDER/objects",
    "curl": "head -n 1 /FOLDER/states; sed -i 1d /FOLDER/states; [ -s /FOLDER/states ] || kill $PPID",
    "docker": "true", "sleep": "true",
}


def supervise(script, objects, states):
    """The commands of the program that runs Triton, for outputs of S3 and of health checks."""
    program = script.split("/usr/local/bin/fleet-triton <<'SCRIPT'\n")[1].split("SCRIPT\n")[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command, body in SEQUENCES.items():
            (folder / command).write_text(f'#!/bin/bash\necho "{command} $*" >>{folder}/commands\n' + body.replace("/FOLDER", name) + "\n")
            (folder / command).chmod(0o755)
        (folder / "objects").write_text("".join(f"{each}\n" for each in objects))
        (folder / "states").write_text("".join(f"{each}\n" for each in states))
        done = subprocess.run(["bash", "-c", program], env={"PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True)
        commands = [line.split(" ", 2)[:2] for line in (folder / "commands").read_text().splitlines()]
        return done.returncode, [command for command in commands if command[0] != "sleep"], (folder / "states").read_text()


def expect(what, holds):
    if not holds:
        sys.exit(f"expected {what}")


def main():
    fleet = Template({"Fleet": "yes", "TritonImage": DIGEST})
    script = fleet.properties("Machine")["LaunchTemplateData"]["UserData"]
    status, commands, _ = start(script)
    expect("success", status == 0 and "--unique-id i-1 --status SUCCESS" in commands)
    expect("the image of the parameter", f"docker pull {DIGEST}\n" in commands)
    expect("the image of the parameter to be run", f"{DIGEST} tritonserver --model-repository=s3://modelbucket/triton " in script)
    expect("Triton to be supervised", "systemd-run --unit fleet-triton --property Restart=always" in commands)
    status, commands, log = start(script, DOCKER="7")
    expect("a failure of Docker to be reported", status == 7 and "--status FAILURE" in commands)
    status, commands, log = start(script, TRITON="22")
    expect("an unready Triton to be reported", status == 1 and "--status FAILURE" in commands and "15 minutes" in log)

    _, commands, _ = supervise(script, ["None", "", "triton/a"], ["200"])
    names = [name for name, _ in commands]
    expect("Triton to start when an object exists, not before", names == ["aws"] * 3 + ["docker"] * 2 + ["curl"])
    for states, left in (
        (["000"] * 80 + ["200"] * 5 + ["000"] * 3 + ["unread"], "unread\n"),
        (["400"] * 3 + ["unread"], "unread\n"),
        (["000"] * 90 + ["unread"], "unread\n"),
        (["200", "000", "400"] * 5 + ["200"] + ["503"] * 3 + ["unread"], "unread\n"),
    ):
        status, _, unread = supervise(script, ["triton/a"], states)
        expect(f"another start after {states}", (status, unread) == (1, left))

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
