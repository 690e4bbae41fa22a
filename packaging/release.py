"""The steps of a release that publish what packaging/dist.py has made, as .github/workflows/release.yml runs them.

    python packaging/release.py check TAG REPOSITORY     whether TAG is the version, and its changes are written down
    python packaging/release.py notes                    what the release's page says
    python packaging/release.py npm PACKAGES [OPTION...]
    python packaging/release.py crates [OPTION...]
    python packaging/release.py image PACKAGES NAME      pushes NAME:VERSION and prints `digest=sha256:...`

PACKAGES is the folder of packaging/dist.py. OPTIONS such as `--dry-run` are passed to `npm publish` and `cargo publish`.
What a registry already has is left out, so that a step that failed can be run again. Needs Python 3.11.
"""

import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True

import npm as packages
from compile import MACHINES, ROOT

# Docker's names of the architectures.
PLATFORMS = {"x86_64": "amd64", "arm64": "arm64"}


def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def changes():
    """The version's section of the changelog, or None if it has none with a date."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[?{re.escape(version())}\]? - [0-9-]+\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found and found[1].strip()


def check(tag, address):
    if tag != f"v{version()}":
        sys.exit(f"the tag is `{tag}`, but Cargo.toml has the version {version()}")
    if not changes():
        sys.exit(f"CHANGELOG.md has no section `## [{version()}] - DATE` with changes")
    if packages.repository() != address:
        sys.exit(f"`repository` in program/Cargo.toml is `{packages.repository()}`, but this is `{address}`")


def notes():
    compiler = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{changes()}\n\nMade with {compiler} and Python {platform.python_version()}.")


def npm(folder, *options):
    """Platforms first: the package that users install names them."""
    main = f"kivuml-{version()}.tgz"
    for file in sorted(Path(folder).glob("kivuml-*.tgz"), key=lambda file: (file.name == main, file.name)):
        with tarfile.open(file) as archive:
            name = json.load(archive.extractfile("package/package.json"))["name"]
        if succeeds("npm", "view", f"{name}@{version()}", "version"):
            print(f"{name} {version()} is on npm already")
        else:
            run("npm", "publish", "--access", "public", *options, file.absolute())


def crates(*options):
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"))
    # An empty list of registries is `publish = false`.
    names = [crate["name"] for crate in metadata["packages"] if crate["publish"] != []]
    missing = [name for name in names if not succeeds("cargo", "info", "--registry", "crates-io", f"{name}@{version()}")]
    if missing:
        # Cargo sorts them by their dependencies, and waits until each is in the index.
        run("cargo", "publish", "--locked", *options, *(f"--package={name}" for name in missing))
    else:
        print(f"all crates of {version()} are on crates.io already")


def image(folder, name):
    tag = f"{name}:{version()}"
    with tempfile.TemporaryDirectory() as unpacked:
        for architecture, other in PLATFORMS.items():
            root = f"kivu-{version()}-linux-{MACHINES[architecture]}"
            with tarfile.open(Path(folder, f"{root}.tar.gz")) as archive:
                archive.extractall(unpacked, filter="data")
            context = Path(unpacked, root)
            # No instruction runs in the image, so another architecture needs no emulator.
            run(
                "docker", "buildx", "build", "--platform", f"linux/{other}", "--provenance=false", "--push",
                "--file", context / "Containerfile", "--tag", f"{tag}-{other}", context,
            )
    run("docker", "buildx", "imagetools", "create", "--tag", tag, *(f"{tag}-{other}" for other in PLATFORMS.values()))
    print(f"digest={output('docker', 'buildx', 'imagetools', 'inspect', tag, '--format', '{{.Manifest.Digest}}').strip()}")


def run(*command):
    # Standard output has only what this script prints.
    subprocess.run(command, check=True, stdout=sys.stderr)


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def succeeds(*command):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def main():
    steps = {step.__name__: step for step in (check, notes, npm, crates, image)}
    if len(sys.argv) < 2 or sys.argv[1] not in steps:
        sys.exit(f"expected one of {', '.join(steps)}, but found {' '.join(sys.argv[1:]) or 'nothing'}")
    try:
        steps[sys.argv[1]](*sys.argv[2:])
    except subprocess.CalledProcessError as error:
        sys.exit(f"`{error.cmd[0]} {error.cmd[1]}` failed with exit code {error.returncode}")


if __name__ == "__main__":
    main()
