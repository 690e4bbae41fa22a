"""Packs a function: bootstrap, ONNX Runtime if it is needed, configuration, bundles, and the list of crates.

    python functions/package.py ARCHIVE.zip --binary api --bundle DIR [--bundle DIR ...]
    python functions/package.py FOLDER --binary batch [--bundle DIR ...] [--library DIR] [--onnx] [--image]

Packs what `cargo lambda build` has built, into an archive (`make package`) or into the folder of `sam build`
(functions/Makefile). The same files make the same archive, byte for byte. ONNX Runtime is left out if all packed bundles
are for Kivu's native engine; `--onnx` packs it anyway, for other bundles that the function loads from S3. `--image` is
for functions/image.py, which has its own limit.
"""

import argparse
import hashlib
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "target/lambda"
LIBRARY_FOLDER = ROOT / ".kivu/onnxruntime"
# The crates of the program as CycloneDX, from functions/parts.py.
PARTS = ROOT / "target/kivu.cdx.json"

# The version in provided.al2023.
GLIBC = (2, 34)
# Lambda's limit for a function and its layers.
MAX_UNPACKED = 250 * 1024 * 1024
# The name of the program in the archive.
PROGRAM = "bootstrap"
# One time for all entries; the earliest that the format has.
TIME = (1980, 1, 1, 0, 0, 0)


def glibc_needed(file):
    """The newest glibc version among the symbols of an ELF file."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())
    return max((int(major), int(minor)) for major, minor in versions)


def machine(file):
    """The architecture of an ELF file, as the number in its header."""
    return int.from_bytes(file.read_bytes()[18:20], "little")


def add(archive, name, file, mode=0o644):
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, file.read_bytes(), compresslevel=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="ARCHIVE.zip|FOLDER")
    parser.add_argument("--binary", choices=["api", "batch"], required=True, help="the function")
    parser.add_argument("--bundle", type=Path, action="append", default=[])
    parser.add_argument("--library", type=Path, default=LIBRARY_FOLDER, help="the folder of ONNX Runtime")
    parser.add_argument("--onnx", action="store_true", help="pack ONNX Runtime even if no packed bundle needs it")
    parser.add_argument("--image", action="store_true", help="pack for a container image")
    arguments = parser.parse_args()

    folder = ROOT / "functions" / arguments.binary
    bootstrap = BUILT / arguments.binary / PROGRAM
    files = {PROGRAM: bootstrap, "kivu.toml": folder / "kivu.toml", PARTS.name: PARTS}
    check_glibc(bootstrap)
    if arguments.onnx or not arguments.bundle or not all(map(is_native, arguments.bundle)):
        files |= library_files(arguments.library, bootstrap)
    for bundle in arguments.bundle:
        for file in sorted(bundle.iterdir()):
            name = f"models/{bundle.name}/{file.name}"
            if name in files:
                sys.exit(f"expected bundles with different names, but found {files[name].parent} and {bundle}; rename one of the folders")
            files[name] = file
    unpacked = sum(file.stat().st_size for file in files.values())
    if unpacked > MAX_UNPACKED and not arguments.image:
        sys.exit(f"expected at most {MAX_UNPACKED} bytes unpacked, but found {unpacked}; pack fewer models, or deploy an image: PARAMETERS=\"Package=image\"")
    if arguments.out.suffix == ".zip":
        write_archive(arguments.out, files)
        digest = hashlib.sha256(arguments.out.read_bytes()).hexdigest()
        # In the form of `sha256sum --check`.
        arguments.out.with_name(f"{arguments.out.name}.sha256").write_text(f"{digest}  {arguments.out.name}\n")
        size = arguments.out.stat().st_size
        print(f"{arguments.out}: {size / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked")
    else:
        write_folder(arguments.out, files)
        print(f"{arguments.out}: {unpacked / 1e6:.1f} MB")


def is_native(bundle):
    """Whether a bundle is for the native engine, which needs no library."""
    return tomllib.loads((bundle / "manifest.toml").read_text()).get("engine") == "native"


def check_glibc(file):
    needed = glibc_needed(file)
    if needed > GLIBC:
        sys.exit(f"expected {file.name} to need at most glibc {GLIBC}, but found {needed}")
    print(f"{file.name} needs glibc {needed[0]}.{needed[1]}, at most {GLIBC[0]}.{GLIBC[1]}")


def library_files(folder, bootstrap):
    """ONNX Runtime and its licences; the library must fit the bootstrap's architecture and Lambda's glibc."""
    libraries = sorted(folder.glob("libonnxruntime.so.*"))
    if len(libraries) != 1:
        sys.exit(f"expected one library in {folder}, but found {len(libraries)}; run `kivu doctor --fix`")
    library = libraries[0]
    if machine(library) != machine(bootstrap):
        sys.exit(
            f"expected {library} and {bootstrap} to be for the same architecture, but found different ones; "
            "set ARCHITECTURE to the template's parameter Architecture"
        )
    check_glibc(library)
    notices = {f"lib/{notice.name}": notice for notice in sorted(folder.glob("*.txt"))}
    return {f"lib/{library.name}": library, **notices}


def write_archive(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in sorted(files.items()):
            add(archive, name, file, 0o755 if name == PROGRAM else 0o644)


def write_folder(folder, files):
    for name, file in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        target.chmod(0o755 if name == PROGRAM else 0o644)


if __name__ == "__main__":
    main()
