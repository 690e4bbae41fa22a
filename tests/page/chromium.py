#!/usr/bin/env python3
"""Prints the path of Chromium for tests: the system's, or one that is downloaded to FOLDER.

    python tests/page/chromium.py FOLDER

The download is the headless Chromium of the npm package `@sparticuz/chromium` for Linux on x86_64, with all libraries
except glibc. It is pinned by version and SHA-256. If neither is available, the reason is written to standard error.
"""

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import brotli

PACKAGE = "@sparticuz/chromium@153.0.0"
ARCHIVE = "sparticuz-chromium-153.0.0.tgz"
SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
INSTALLED = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
# Paths of libraries and fonts for the browser.
STARTER = """#!/bin/sh
here={folder}
LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf" exec "$here/browser" "$@"
"""
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""


def fetch(folder):
    """The path of the browser in `folder`; downloads it first if necessary."""
    starter = folder / "chromium"
    if starter.exists():
        return starter
    folder.mkdir(parents=True, exist_ok=True)
    npm = ["npm", "pack", PACKAGE, "--pack-destination", str(folder)]
    subprocess.run(npm, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    archive = folder / ARCHIVE
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"expected {PACKAGE} to have the SHA-256 {SHA256}, but found {found}")
    with tarfile.open(archive) as package:
        def unpacked(name):
            return brotli.decompress(package.extractfile(f"package/bin/{name}.br").read())

        for name in ("al2023.tar", "fonts.tar"):
            with tarfile.open(fileobj=io.BytesIO(unpacked(name))) as part:
                part.extractall(folder)
        (folder / "browser").write_bytes(unpacked("chromium"))
    (folder / "browser").chmod(0o755)
    archive.unlink()
    (folder / "fonts.conf").write_text(FONTS.format(folder=folder))
    # Written last: its presence means that the download is complete.
    starter.write_text(STARTER.format(folder=f"'{folder}'"))
    starter.chmod(0o755)
    return starter


def main():
    folder = Path(sys.argv[1]).resolve()
    installed = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, INSTALLED)), None)
    if installed:
        print(installed)
    elif (folder / "chromium").exists() or (platform.machine() == "x86_64" and shutil.which("npm")):
        print(fetch(folder))
    else:
        print("no chromium on the PATH, and no npm to fetch one for this machine", file=sys.stderr)


if __name__ == "__main__":
    main()
