"""Makes the archive of the function: bootstrap, ONNX Runtime, one or more bundles, configuration.

    python functions/package.py ARCHIVE --bundle DIR [--bundle DIR ...]

Run by `make package`, after `cargo lambda build`. The same files give the same archive, byte for byte.
"""

import argparse
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOOTSTRAP = ROOT / "target/lambda/api/bootstrap"
CONFIG = ROOT / "functions/api/kivu.toml"
LIBRARY_FOLDER = ROOT / ".kivu/onnxruntime"

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


def add(archive, name, file, mode=0o644):
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, file.read_bytes(), compresslevel=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--bundle", type=Path, action="append", required=True)
    arguments = parser.parse_args()

    libraries = sorted(LIBRARY_FOLDER.glob("libonnxruntime.so.*"))
    if len(libraries) != 1:
        sys.exit(f"expected one library in {LIBRARY_FOLDER}, but found {len(libraries)}; run `kivu doctor --fix`")
    library = libraries[0]
    for file in (BOOTSTRAP, library):
        needed = glibc_needed(file)
        if needed > GLIBC:
            sys.exit(f"expected {file.name} to need at most glibc {GLIBC}, but found {needed}")
        print(f"{file.name} needs glibc {needed[0]}.{needed[1]}; provided.al2023 has {GLIBC[0]}.{GLIBC[1]}")

    files = {"bootstrap": BOOTSTRAP, f"lib/{library.name}": library, "kivu.toml": CONFIG}
    for notice in sorted(LIBRARY_FOLDER.glob("*.txt")):
        files[f"lib/{notice.name}"] = notice
    for bundle in arguments.bundle:
        for file in sorted(bundle.iterdir()):
            files[f"models/{bundle.name}/{file.name}"] = file
    unpacked = sum(file.stat().st_size for file in files.values())
    if unpacked > LARGEST_UNPACKED:
        sys.exit(f"expected at most {LARGEST_UNPACKED} bytes unpacked, but found {unpacked}; pack fewer models")

    arguments.archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(arguments.archive, "w") as archive:
        for name, file in sorted(files.items()):
            add(archive, name, file, 0o755 if name == "bootstrap" else 0o644)
    size = arguments.archive.stat().st_size
    print(f"{arguments.archive}: {size / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked")


if __name__ == "__main__":
    main()
