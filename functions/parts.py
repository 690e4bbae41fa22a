"""Writes the list of the crates in the program and the functions as CycloneDX, with version, licence and SHA-256.

    python3 functions/parts.py OUT.json

Leaves out crates that only tests or builds use. The same `Cargo.lock` makes the same file: it has no time, and its
serial number follows from its content. Needs `cargo` and only Python's standard library.
"""

import json
import pathlib
import subprocess
import sys
import tomllib
import urllib.parse
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"


def crates():
    """The program's package, and the crates in it, in the functions or in the modules for Python and Node.js, by name and version."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    ids = {packages[member]["name"]: member for member in metadata["workspace_members"]}
    programs = {ids[name] for name in ("kivu-program", "kivu-functions", "kivu-node", "kivu-python")}
    reached, waiting = set(programs), list(programs)
    while waiting:
        for needed in nodes[waiting.pop()]["deps"]:
            is_normal = any(kind["kind"] is None for kind in needed["dep_kinds"])
            if is_normal and needed["pkg"] not in reached:
                reached.add(needed["pkg"])
                waiting.append(needed["pkg"])
    crates = (packages[each] for each in reached - programs)
    return packages[ids["kivu-program"]], sorted(crates, key=lambda crate: (crate["name"], crate["version"]))


def component(crate, kind, hashes):
    name, version = crate["name"], crate["version"]
    url = f"pkg:cargo/{name}@{urllib.parse.quote(version)}"
    found = {"type": kind, "name": name, "version": version, "purl": url, "bom-ref": url}
    # Cargo's older form of `OR` is a slash.
    if expression := (crate.get("license") or "").replace("/", " OR "):
        found["licenses"] = [{"expression": expression}]
    if digest := hashes.get((name, version)):
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return found


def main():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    hashes = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    program, parts = crates()
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(program, "application", hashes)},
        "components": [component(crate, "library", hashes) for crate in parts],
    }
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom, sort_keys=True))}"
    out = pathlib.Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")
    print(f"{out}: {len(parts)} crates")


if __name__ == "__main__":
    main()
