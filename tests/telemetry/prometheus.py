#!/usr/bin/env python3
"""Prints the folder with Prometheus and promtool for tests: the system's, or one that is downloaded to FOLDER.

    python tests/telemetry/prometheus.py FOLDER

The download is Debian 12's package, pinned by version and SHA-256, from the archive configured for apt-get; nothing is
installed, and no root is needed. If neither is available, the reason is written to standard error.
"""

import platform
import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "arm64"))
from setup import Archive, unpack  # noqa: E402

VERSION = "2.42.0+ds-5+deb12u1"
# By `uname -m`: Debian's architecture and the SHA-256.
PACKAGES = {
    "x86_64": ("amd64", "81d59a24fce84f7fbe97a45a4f2914b6a5881b5cd1db2a6a0e129e515e1a5f55"),
    "aarch64": ("arm64", "ca131aa102390083398afbc80be9c8dd1dda78f9f92154fc00df8f7f1f4556e9"),
}
PROGRAMS = ("prometheus", "promtool")


def main():
    folder = Path(sys.argv[1]).resolve()
    found = [shutil.which(program) for program in PROGRAMS]
    if all(found) and len({Path(program).parent for program in found}) == 1:
        print(Path(found[0]).parent)
        return
    programs = folder / "root/usr/bin"
    if not all((programs / program).exists() for program in PROGRAMS):
        architecture, expected = PACKAGES.get(platform.machine(), (None, None))
        if not architecture or not shutil.which("apt-get") or not is_debian_12():
            print("no prometheus and promtool on the PATH, and no package of Debian 12 for this machine", file=sys.stderr)
            return
        package = Archive(folder).fetch(("prometheus", architecture, VERSION, expected))
        unpack(package, folder / "root")
    print(programs)


def is_debian_12():
    release = Path("/etc/os-release")
    return release.is_file() and "VERSION_CODENAME=bookworm" in release.read_text().splitlines()


if __name__ == "__main__":
    main()
