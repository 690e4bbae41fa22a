"""The npm packages: `kivuml`, which users install, and a package per platform with the native module.

    python3 packaging/npm.py OUT MODULE [LIBRARY...]

Writes to the folder OUT the package for this machine alone: `kivuml` with the native module MODULE and the files of ONNX
Runtime in it. packaging/dist.py makes the packages of a release. Needs only Python's standard library.
"""

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The names that npm gives the architectures.
ARCHITECTURES = {"x86_64": "x64", "arm64": "arm64"}
MODULE = "kivuml.node"
PROGRAM = "kivu.js"
SUFFIXES = (".js", ".mjs", ".ts", ".mts")


def platform_name(architecture):
    return f"{template()['name']}-linux-{ARCHITECTURES[architecture]}"


def template():
    return json.loads((ROOT / "node/package.json").read_text())


def manifest(name=None, **fields):
    """The manifest of `kivuml`, or the one of a package with another name."""
    # Not `tomllib`, which needs Python 3.11: tests make a package, too.
    workspace = (ROOT / "Cargo.toml").read_text().split("[workspace.package]")[1]
    version, license = (re.search(rf'^{key} = "(.*)"', workspace, re.M)[1] for key in ("version", "license"))
    found = template()
    kept = found if name is None else {key: found[key] for key in ("description", "engines")}
    made = {"name": name or found["name"], "version": version, "license": license} | kept | fields
    return (json.dumps(made, indent=2) + "\n").encode()


def main_files():
    """The files of `kivuml`, but its manifest."""
    sources = sorted(file for file in (ROOT / "node/kivuml").iterdir() if file.suffix in SUFFIXES)
    files = {file.name: file for file in sources}
    return files | {"README.md": ROOT / "node/README.md", "LICENSE": ROOT / "LICENSE"}


def platform_files(module, library):
    """The native module with its library, for a platform's package."""
    return {MODULE: module} | {f"lib/{file.name}": file for file in library}


def platform_manifest(architecture):
    constraints = {"os": ["linux"], "cpu": [ARCHITECTURES[architecture]], "libc": ["glibc"]}
    return manifest(platform_name(architecture), **constraints)


def main():
    out, module, *library = map(Path, sys.argv[1:])
    if out.exists():
        shutil.rmtree(out)
    native = {f"native/{path}": file for path, file in platform_files(module, library).items()}
    for path, file in (main_files() | native).items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, out / path)
    (out / PROGRAM).chmod(0o755)
    (out / "package.json").write_bytes(manifest())


if __name__ == "__main__":
    main()
