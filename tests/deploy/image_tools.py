#!/usr/bin/env python3
"""Prints the folder with Debian's tools for images: docker-registry, skopeo and umoci, downloaded to FOLDER.

    python tests/deploy/image_tools.py FOLDER

Debian 12's packages, pinned by version and SHA-256, from the archive configured for apt-get; nothing is installed, and no
root is needed. If there are none for this machine, the reason is written to standard error.
"""

import platform
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "arm64"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "telemetry"))
from prometheus import is_debian_12  # noqa: E402
from setup import Archive, unpack  # noqa: E402

# Package, version, SHA-256; the last three are skopeo's libraries.
PACKAGES = (
    ("docker-registry", "2.8.2+ds1-1", "a9bd06c0e006854608f8469b4371743f40604ad90975532bb3b7ceeb72fe2913"),
    ("skopeo", "1.9.3+ds1-1+b10", "5c1978f6a95577b143be772bbe50c247a28132a5cc961c74d4d2a6f2b1ab4f3d"),
    ("umoci", "0.4.7+ds-3+b7", "8adce0c435368b8514425bfa31647ff1629241c97331ba4cd3da838a61a58e5a"),
    ("libgpgme11", "1.18.0-3+b1", "dc075584050dc5c8ac27563fc222e8c1ea71128a019a6d129d5823e47ac1e55e"),
    ("libassuan0", "2.5.5-5", "5912430927da16ccc831459679207fdbb9dfc5a206f2bab8d6f36d5a1ab53e25"),
    ("libdevmapper1.02.1", "2:1.02.185-2", "aaa78ca236055fedccf637eacf7bda02bf1980b2db668dccd202b04d0d2cfe04"),
)


def main():
    folder = Path(sys.argv[1]).resolve()
    if platform.machine() != "x86_64" or not is_debian_12():
        print("the packages of Debian 12 are pinned for x86-64", file=sys.stderr)
        return
    archive = Archive(folder)
    for name, version, expected in PACKAGES:
        unpack(archive.fetch((name, "amd64", version, expected)), folder / "root")
    print(folder / "root")


if __name__ == "__main__":
    main()
