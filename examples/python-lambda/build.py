#!/usr/bin/env python3
"""Makes the folders that template.yaml deploys: the layer with the packages, and the function with its model.

    python examples/python-lambda/build.py WHEEL BUNDLE OUT [--python 3.13]

WHEEL is the file `kivuml-….whl`, and BUNDLE the model. Lambda accepts archives of up to 50 MB each in requests, and
250 MB of files in the layer and the function together; larger ones are refused here.
"""

import argparse
import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MAX_ARCHIVE = 50_000_000
MAX_FILES = 250 * 1024 * 1024
# numpy has wheels for the first, and Lambda's glibc is newer.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")


def install_numpy(python, folder):
    options = [option for platform in PLATFORMS for option in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", folder]
    command += [*options, "--python-version", python, "--only-binary", ":all:", "--require-hashes"]
    subprocess.run([*command, "--requirement", FOLDER / "requirements.txt"], check=True)
    for unused in [*folder.glob("numpy/**/tests"), *folder.glob("bin"), *folder.glob("numpy/_core/include")]:
        shutil.rmtree(unused)


def unpack(wheel, folder):
    """The package without ONNX Runtime, which the native engine does not need."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("kivuml/") and not name.startswith("kivuml/lib/"):
                archive.extract(name, folder)


def archive_size(folder):
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return found.tell()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.13", help="version of the runtime (default: %(default)s)")
    options = parser.parse_args()
    if not 'engine = "native"' in (options.bundle / "manifest.toml").read_text():
        sys.exit(f"expected a bundle for the native engine, but found another in `{options.bundle}`; see docs/bundles.md")
    layer, function = options.out / "layer", options.out / "function"
    for folder in (layer, function):
        shutil.rmtree(folder, ignore_errors=True)
    install_numpy(options.python, layer / "python")
    unpack(options.wheel, layer / "python")
    function.mkdir()
    shutil.copy(FOLDER / "app.py", function)
    shutil.copytree(options.bundle, function / "model")
    archives = {folder.name: archive_size(folder) for folder in (layer, function)}
    files = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(", ".join(f"{name}.zip: {size / 1e6:.1f} MB" for name, size in archives.items()) + f", unpacked: {files / 1e6:.0f} MB")
    if max(archives.values()) > MAX_ARCHIVE or files > MAX_FILES:
        sys.exit(f"expected archives of at most {MAX_ARCHIVE / 1e6:.0f} MB each and files of at most {MAX_FILES / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
