"""Validates the example for Terraform with Terraform itself, and compares its function with that of the template.

    python tests/deploy/terraform.py TERRAFORM [apply]

With `apply` it is also applied to the emulator, with a placeholder for the archive. The provider of AWS is installed from
/opt/tf-plugins, where that exists, or from Terraform's registry.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from template import ROOT, Template

EXAMPLE = ROOT / "deploy/terraform"
PLUGINS = Path("/opt/tf-plugins")


def main():
    terraform, is_applied = sys.argv[1], sys.argv[2:] == ["apply"]
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(EXAMPLE / "main.tf", name)

        def run(*command, **variables):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("TF_")} | variables
            done = subprocess.run([terraform, *command], cwd=name, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"terraform {command[0]}\n{done.stdout}{done.stderr}")
            return done.stdout

        run("fmt", "-check")
        run("init", "-backend=false", "-input=false", *([f"-plugin-dir={PLUGINS}"] if PLUGINS.is_dir() else []))
        run("validate")
        compare((EXAMPLE / "main.tf").read_text())
        if is_applied:
            from emulator import Emulator

            archive = Path(name, "archive.zip")
            with zipfile.ZipFile(archive, "w") as file:
                file.writestr("bootstrap", "#!/bin/sh\n")
            with Emulator(Path(name, "log")) as emulator:
                image = {"TF_VAR_image": "000000000000.dkr.ecr.eu-west-1.amazonaws.com/a@sha256:" + "0" * 64}
                for given in ({"TF_VAR_archive": str(archive)}, image, image | {"TF_VAR_snap_start": "true"}):
                    variables = emulator.environment | given
                    print(run("apply", "-auto-approve", "-no-color", **variables)[-600:])
                    print(run("plan", "-detailed-exitcode", "-no-color", **variables)[-200:])


def compare(example):
    """The function of the example is configured as that of the smallest deployment."""
    function = Template().properties("ApiFunction")
    text = lambda field: re.search(rf'^ +{field} += (?:local.is_image \? null : )?"?([^"\n]+)"?$', example, re.MULTILINE)[1]
    found = {field: text(field) for field in ("runtime", "handler", "timeout", "KIVU_MODELS", "KIVU_AUTH__MODE")}
    variables = function["Environment"]["Variables"]
    expected = {
        "runtime": function["Runtime"], "handler": function["Handler"], "timeout": str(function["Timeout"]),
        "KIVU_MODELS": variables["KIVU_MODELS"], "KIVU_AUTH__MODE": variables["KIVU_AUTH__MODE"],
    }
    if found != expected:
        sys.exit(f"expected {expected} as in template.yaml, but found {found}")
    unknown = set(re.findall(r"KIVU_\w+", example)) - variables.keys()
    if unknown:
        sys.exit(f"expected the variables of template.yaml, but found {unknown}")


if __name__ == "__main__":
    main()
