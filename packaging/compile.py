"""Compiles the program and the functions for distribution.

    python packaging/compile.py x86_64|arm64 TARGET-FOLDER

Links with zig against an old glibc, so that the programs run on every distribution since 2018, and on Lambda. The same
commit makes the same programs in every folder and home: paths of sources are replaced. Prints the folder of the
programs. Needs the Python package `ziglang`; for another architecture, also the compiler of tests/arm64/setup.py or
`rustup target add`.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
PROFILE = "packaged"
# manylinux_2_28; ONNX Runtime needs 2.27.
GLIBC = "2.28"
COMPILER = """#!/bin/sh
# zig does not support the target that cc-rs passes.
for argument; do
  shift
  case $argument in --target=*) ;; *) set -- "$@" "$argument" ;; esac
done
exec {python} -m ziglang cc -target {machine}-linux-gnu.{glibc} -fno-sanitize=undefined "$@"
"""
ARCHIVER = """#!/bin/sh
exec {python} -m ziglang ar "$@"
"""


def main():
    architecture, folder = sys.argv[1], Path(sys.argv[2]).absolute()
    machine = MACHINES[architecture]
    target = f"{machine}-unknown-linux-gnu"
    tools = folder / "tools" / architecture
    tools.mkdir(parents=True, exist_ok=True)
    for name, text in (("cc", COMPILER), ("ar", ARCHIVER)):
        (tools / name).write_text(text.format(python=sys.executable, machine=machine, glibc=GLIBC))
        (tools / name).chmod(0o755)
    cargo_home = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
    # In this order, because the last one that matches is used.
    paths = {cargo_home: "/cargo", ROOT: "/kivu", folder: "/build"}
    flags = [f"--remap-path-prefix={path}={name}" for path, name in paths.items()]
    variables = {
        f"CC_{target.replace('-', '_')}": str(tools / "cc"), f"AR_{target.replace('-', '_')}": str(tools / "ar"),
        f"CFLAGS_{target.replace('-', '_')}": " ".join(f"-ffile-prefix-map={path}={name}" for path, name in paths.items()),
    }
    if machine != platform.machine() and (rustc := ROOT / ".kivu/arm64/bin/rustc").is_file():
        variables["RUSTC"] = str(rustc)
    command = [
        "cargo", "build", "--profile", PROFILE, "--locked", "--target", target, "--target-dir", str(folder / "build"),
        "--config", f"target.{target}.linker={json.dumps(str(tools / 'cc'))}",
        "--config", f"target.{target}.rustflags={json.dumps(flags)}",
        "--workspace", "--lib", "--bins",
    ]
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True)
    print(folder / "build" / target / PROFILE)


if __name__ == "__main__":
    main()
