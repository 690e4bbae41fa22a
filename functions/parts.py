"""Writes a list of the program's crates as CycloneDX, with version, licence and SHA-256.

    .kivu/checkov/bin/python functions/parts.py OUT.json

Crates that only tests or builds need are left out. The same `Cargo.lock` gives the same bytes: there is no time in it,
and its number follows from what it lists. Needs `cargo` and cyclonedx-python-lib, which checkov brings along.
"""

import json
import pathlib
import subprocess
import sys
import tomllib
import uuid

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"


def crates():
    """The crates that are compiled into the program, by name and version, and the program itself."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    reached, waiting = {root}, [root]
    while waiting:
        for needed in nodes[waiting.pop()]["deps"]:
            is_normal = any(kind["kind"] is None for kind in needed["dep_kinds"])
            if is_normal and needed["pkg"] not in reached:
                reached.add(needed["pkg"])
                waiting.append(needed["pkg"])
    reached.remove(root)
    return packages[root], sorted((packages[each] for each in reached), key=lambda crate: (crate["name"], crate["version"]))


def described(crate, hashes, kind):
    name, version = crate["name"], crate["version"]
    url = PackageURL("cargo", name=name, version=version)
    found = hashes.get((name, version))
    expression = (crate.get("license") or "").replace("/", " OR ")
    return Component(
        type=kind, name=name, version=version, purl=url, bom_ref=str(url),
        licenses=[LicenseFactory().make_from_string(expression)] if expression else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=found)] if found else [],
    )


def main():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    hashes = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    program, parts = crates()
    bom = Bom(components=[described(crate, hashes, ComponentType.LIBRARY) for crate in parts])
    bom.metadata.component = described(program, hashes, ComponentType.APPLICATION)
    bom.metadata.tools.clear()
    text = json.loads(JsonV1Dot5(bom).output_as_string())
    text.pop("serialNumber", None)
    text["metadata"].pop("timestamp", None)
    text["metadata"].pop("tools", None)
    text["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(text, sort_keys=True))}"
    pathlib.Path(sys.argv[1]).write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    print(f"{sys.argv[1]}: {len(parts)} crates")


if __name__ == "__main__":
    main()
