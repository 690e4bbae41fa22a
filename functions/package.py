"""Puts together what a function needs beside its bootstrap: ONNX Runtime, bundles, configuration.

    python functions/package.py ARCHIVE.zip --bundle DIR [--bundle DIR ...]
    python functions/package.py FOLDER [--bundle DIR ...] [--library DIR]

The first makes an archive of what `cargo lambda build` built, and is run by `make package`; the same files give the
same archive, byte for byte. The second completes a folder of `sam build`, which has a bootstrap already, and is run
by `make deploy`.
"""

import argparse
import re
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOOTSTRAP = ROOT / "target/lambda/api/bootstrap"
CONFIGS = {"BatchFunction": ROOT / "functions/batch/kivu.toml"}
CONFIG = ROOT / "functions/api/kivu.toml"
LIBRARY_FOLDER = ROOT / ".kivu/onnxruntime"
# What the function is made of, as CycloneDX: `make package` writes it.
PARTS = ROOT / "target/kivu.cdx.json"

# What provided.al2023 has.
GLIBC = (2, 34)
# What Lambda takes: the unpacked function with its layers.
LARGEST_UNPACKED = 250 * 1024 * 1024
# The same time for every entry; zip knows none before 1980.
TIME = (1980, 1, 1, 0, 0, 0)


def glibc_needed(file):
    """The newest glibc whose symbols an ELF file names."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())
    return max((int(major), int(minor)) for major, minor in versions)


def machine(file):
    """The processor that an ELF file is for, as its head numbers it."""
    return int.from_bytes(file.read_bytes()[18:20], "little")


def add(archive, name, file, mode=0o644):
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, file.read_bytes(), compresslevel=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="ARCHIVE.zip|FOLDER")
    parser.add_argument("--bundle", type=Path, action="append", default=[])
    parser.add_argument("--library", type=Path, default=LIBRARY_FOLDER, help="the folder of ONNX Runtime")
    arguments = parser.parse_args()
    is_archive = arguments.out.suffix == ".zip"
    bootstrap = BOOTSTRAP if is_archive else arguments.out / "bootstrap"

    config = CONFIGS.get(arguments.out.name, CONFIG)
    files = {"bootstrap": bootstrap, "kivu.toml": config, **library_files(arguments.library, bootstrap)}
    if is_archive and PARTS.is_file():
        files[PARTS.name] = PARTS
    for bundle in arguments.bundle:
        for file in sorted(bundle.iterdir()):
            files[f"models/{bundle.name}/{file.name}"] = file
    unpacked = sum(file.stat().st_size for file in files.values())
    if unpacked > LARGEST_UNPACKED:
        sys.exit(f"expected at most {LARGEST_UNPACKED} bytes unpacked, but found {unpacked}; pack fewer models")
    if is_archive:
        write_archive(arguments.out, files)
        size = arguments.out.stat().st_size
        print(f"{arguments.out}: {size / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked")
    else:
        complete_folder(arguments.out, files)
        print(f"{arguments.out}: {unpacked / 1e6:.1f} MB")


def library_files(folder, bootstrap):
    """ONNX Runtime and its licences, which must be for the bootstrap's processor and for Lambda's system."""
    libraries = sorted(folder.glob("libonnxruntime.so.*"))
    if len(libraries) != 1:
        sys.exit(f"expected one library in {folder}, but found {len(libraries)}; run `kivu doctor --fix`")
    library = libraries[0]
    if machine(library) != machine(bootstrap):
        sys.exit(f"expected {library} to be for the processor that {bootstrap} is for, but found another")
    for file in (bootstrap, library):
        needed = glibc_needed(file)
        if needed > GLIBC:
            sys.exit(f"expected {file.name} to need at most glibc {GLIBC}, but found {needed}")
        print(f"{file.name} needs glibc {needed[0]}.{needed[1]}; provided.al2023 has {GLIBC[0]}.{GLIBC[1]}")
    notices = {f"lib/{notice.name}": notice for notice in sorted(folder.glob("*.txt"))}
    return {f"lib/{library.name}": library, **notices}


def write_archive(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in sorted(files.items()):
            add(archive, name, file, 0o755 if name == "bootstrap" else 0o644)


def complete_folder(folder, files):
    for name, file in files.items():
        target = folder / name
        if target != file:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


if __name__ == "__main__":
    main()
