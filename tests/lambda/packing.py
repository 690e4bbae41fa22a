"""Packs the same function twice, from files with different times and in a different order, and compares the archives;
and packs ONNX Runtime only for bundles that need it.

Tests only the packing, with placeholder files. Needs only Python's standard library.
"""

import hashlib
import os
import pathlib
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "functions"))
import package


def elf(text):
    """A file with the header of an x86-64 program that needs an old glibc."""
    return b"\x7fELF" + bytes(14) + b"\x3e\x00" + b"GLIBC_2.17" + text


def archive(folder, names, time, manifest=b"format = 1", options=(), binary="api"):
    """The digest of an archive of files written in this order, at this time, and the names in it."""
    contents = {
        "lambda/api/bootstrap": elf(b"bootstrap"), "lambda/kivu/bootstrap": elf(b"kivu"), "library/libonnxruntime.so.1": elf(b"library"), "library/LICENSE.txt": b"licence",
        "tiny/manifest.toml": manifest, "tiny/model.onnx": bytes(10_000), "kivu.cdx.json": b"{}",
    }
    for name in names(sorted(contents)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[name])
        os.utime(path, (time, time))
    package.BUILT, package.PARTS = folder / "lambda", folder / "kivu.cdx.json"
    out = folder / "out.zip"
    sys.argv = ["package.py", str(out), "--binary", binary, "--bundle", str(folder / "tiny"), "--library", str(folder / "library"), *options]
    package.main()
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    if (folder / "out.zip.sha256").read_text() != f"{digest}  out.zip\n":
        sys.exit("expected the digest of the archive in out.zip.sha256")
    return digest, zipfile.ZipFile(out).namelist()


def main():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        os.umask(0o022)
        first = archive(pathlib.Path(one), list, 1_000_000_000)
        os.umask(0o077)
        second = archive(pathlib.Path(other), lambda names: list(reversed(names)), 1_700_000_000)
    if first != second:
        sys.exit(f"expected the same archive twice, but found {first} and {second}")
    for manifest, options, expected in (
        (b"format = 1", [], True), (b'engine = "native"', [], False), (b'engine = "native"', ["--onnx"], True),
    ):
        with tempfile.TemporaryDirectory() as folder:
            _, names = archive(pathlib.Path(folder), list, 1_000_000_000, manifest, options)
        if ("lib/libonnxruntime.so.1" in names) != expected:
            sys.exit(f"expected ONNX Runtime: {expected}, with {manifest} and {options}, but found {names}")
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder, "other/tiny")
        other.mkdir(parents=True)
        (other / "manifest.toml").write_bytes(b"")
        try:
            archive(pathlib.Path(folder), list, 1_000_000_000, options=["--bundle", str(other)])
            sys.exit("expected an error for two bundles with one name, but found an archive")
        except SystemExit as error:
            if "expected bundles with different names" not in str(error):
                raise


if __name__ == "__main__":
    main()
