#!/usr/bin/env python3
"""Downloads a compiler, a linker and emulators for arm64 on an x86-64 machine.

    python tests/arm64/setup.py FOLDER

Needs the Python package `ziglang`, whose C compiler links. Writes to FOLDER

- `cargo.toml`: a configuration for `cargo --config`, with the compiler, the linker and the emulator;
- `host/`: the emulators, and Debian's Rust compiler with a standard library for arm64;
- `root/`: the C and C++ libraries of an arm64 system.

A compiler with that target (`rustup target add aarch64-unknown-linux-gnu`) is used instead of Debian's. On an arm64
machine nothing is downloaded. The packages are pinned by version and SHA-256 and come from the archive configured for
apt-get, whose state is kept below FOLDER: nothing is installed, and no root is needed. Requires Debian 12, or a
complete FOLDER/debian.
"""

import hashlib
import platform
import shlex
import subprocess
import sys
from pathlib import Path

TARGET = "aarch64-unknown-linux-gnu"
# The core of Graviton2, the oldest arm64 processor of Lambda.
PROCESSOR = "neoverse-n1"
# The version of the C library in Lambda's provided.al2023.
GLIBC = "2.34"

RUST = "1.96.0+dfsg1-1~deb12u2"
GCC = "12.2.0-14+deb12u1"
# Package, architecture, version, SHA-256.
EMULATORS = (
    ("qemu-user-static", "amd64", "1:7.2+dfsg-7+deb12u18+b3", "c3e3ba2bd87f8c5b9a5da5ef21b5a3b82d7c63b89dd448d9ddaa4eabc5b6e402"),
)
SYSTEM = (
    ("libc6", "arm64", "2.36-9+deb12u14", "01f4330719fd4f65580e16ea5a0527f372fca750e8f588d26deaf09f2d3b1cf4"),
    ("libgcc-s1", "arm64", GCC, "576926b283613db80168ddf76380a3bd877602778cf0d226caa7bfbfa71eacf3"),
    ("libstdc++6", "arm64", GCC, "26e138c677a985775331373828a6c286c551ff397cb735d00e2383cb273d1cb2"),
)
COMPILER = (
    ("rustc-web", "amd64", RUST, "8fefe1d6377fe4082f5a9d2a47e095e2d20319eaab9754bd2f0275155c9adf90"),
    ("libstd-rust-web-1.96", "amd64", RUST, "3755f30434ae29574c91b0beb86632bee401607b0ac35c3e52810f9a53fae0d1"),
    ("libstd-rust-web-dev", "amd64", RUST, "e38dbeaaad673fc63fb47c5140cf34da271ac71c3ecafc828b762c2fb01fe77a"),
    ("libstd-rust-web-dev", "arm64", RUST, "02419380801b9f61391294823659b17b90f7a863ca3bbccb9140d2f0f8a2c910"),
    ("libllvm22", "amd64", "1:22.1.8-1~deb12u1", "729ec3e943d320515c2bbdc96acfffd7ce34861e62bd5c42726bf586d644dfe2"),
    ("libz3-4", "amd64", "4.8.12-3.1", "6221ca25ad5abcfbe1965801029d85a88b4775320384b4b716de8fab7a4d2f7a"),
    ("libedit2", "amd64", "3.1-20221030-2", "1cf14abf2716d3279db12d0657a5737cf70074a1e71d3bdf73206625e3c89ce6"),
    ("libbsd0", "amd64", "0.11.7-2", "bb31cc8b40f962a85b2cec970f7f79cc704a1ae4bad24257a822055404b2c60b"),
    ("libffi8", "amd64", "3.4.4-1", "6d9f6c25c30efccce6d4bceaa48ea86c329a3432abb360a141f76ac223a4c34a"),
    ("libxml2", "amd64", "2.9.14+dfsg-1.3~deb12u6", "4460e39dda10a815881374217cde08474747cfa018358cd8612c14b390eff53b"),
    ("libicu72", "amd64", "72.1-3+deb12u1", "f7f6f99c6d7b025914df2447fc93e11d22c44c0c8bdd8b6f36691c9e7ddcef88"),
)

LINKER = """#!/bin/sh
# zig does not support the target that cc-rs passes.
for argument; do
  shift
  case $argument in --target=*) ;; *) set -- "$@" "$argument" ;; esac
done
exec {zig} cc -target aarch64-linux-gnu.{glibc} -fno-sanitize=undefined "$@"
"""
ARCHIVER = """#!/bin/sh
exec {zig} ar "$@"
"""
RUSTC = """#!/bin/sh
LD_LIBRARY_PATH={host}/usr/lib/x86_64-linux-gnu exec {host}/usr/bin/rustc "$@"
"""


def main():
    folder = Path(sys.argv[1]).absolute()
    machine = platform.machine()
    if machine == "aarch64":
        configure(folder, {"build": {"target": TARGET}})
        return 0
    if machine != "x86_64":
        print(f"error: expected x86_64 or aarch64, but found {machine}", file=sys.stderr)
        return 1
    try:
        has_target = supports_target()
        host = [*EMULATORS, *(() if has_target else COMPILER)]
        archive = Archive(folder)
        for into, packages in (("host", host), ("root", SYSTEM)):
            for package in packages:
                unpack(archive.fetch(package), folder / into)
        cross(folder, has_target)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def supports_target():
    """Whether the installed compiler has a standard library for arm64."""
    command = ["rustc", "--print", "target-libdir", "--target", TARGET]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode == 0 and any(Path(result.stdout.strip()).glob("libstd-*"))


class Archive:
    """The archive configured for apt-get, with separate state."""

    def __init__(self, folder):
        self.packages = folder / "debian"
        self.packages.mkdir(parents=True, exist_ok=True)
        state = folder / "apt"
        self.options = [
            "-o=APT::Architecture=amd64",
            "-o=APT::Architectures::=amd64",
            "-o=APT::Architectures::=arm64",
            # As root, apt-get would download as another user without permission to write here.
            "-o=APT::Sandbox::User=root",
            f"-o=Dir::State::Lists={state / 'lists'}",
            f"-o=Dir::Cache={state / 'cache'}",
            "-o=Debug::NoLocking=1",
        ]
        for part in ("lists/partial", "cache/archives/partial"):
            (state / part).mkdir(parents=True, exist_ok=True)
        self.is_current = False

    def fetch(self, package):
        """The path of a package, verified by its hash.

        Archives remove replaced versions; then the newer version, signed by Debian, is used.
        """
        name, architecture, version, expected = package
        path = self.packages / f"{name}_{version.replace(':', '%3a')}_{architecture}.deb"
        if not path.is_file():
            if not self.is_current:
                self.run("update")
                self.is_current = True
            try:
                self.run("download", f"{name}:{architecture}={version}")
            except ValueError:
                self.run("download", f"{name}:{architecture}")
                path = max(self.packages.glob(f"{name}_*_{architecture}.deb"), key=lambda found: found.stat().st_mtime)
                print(f"expected {name} {version}, but found {path.name}: update its pin in {__file__}", file=sys.stderr)
                return path
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            path.unlink()
            raise ValueError(f"expected {path.name} to have the SHA-256 {expected}, but found {found}")
        return path

    def run(self, *arguments):
        command = ["apt-get", "-qq", *self.options, *arguments]
        try:
            done = subprocess.run(command, cwd=self.packages, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise ValueError("expected apt-get, but found none; this requires Debian 12") from error
        if done.returncode != 0:
            raise ValueError(f"`apt-get {' '.join(arguments)}` failed: {done.stderr.strip()}")


def unpack(package, folder):
    done = folder / "unpacked" / package.name
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
    # The emulators of forty other processors take 300 MB.
    for emulator in (folder / "usr/bin").glob("qemu-*"):
        if emulator.name not in ("qemu-aarch64-static", "qemu-x86_64-static"):
            emulator.unlink()
    done.parent.mkdir(exist_ok=True)
    done.touch()


def cross(folder, has_target):
    """Writes wrappers for the tools, and the cargo configuration."""
    import ziglang  # noqa: PLC0415, not needed on arm64

    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    zig = shlex.quote(str(Path(ziglang.__file__).parent / "zig"))
    host = folder / "host"
    linker = script(tools / "cc", LINKER.format(zig=zig, glibc=GLIBC))
    archiver = script(tools / "ar", ARCHIVER.format(zig=zig))
    build = {"target": TARGET}
    if not has_target:
        build["rustc"] = str(script(tools / "rustc", RUSTC.format(host=shlex.quote(str(host)))))
    emulator = [str(host / "usr/bin/qemu-aarch64-static"), "-L", str(folder / "root")]
    compiler = {f"CC_{TARGET.replace('-', '_')}": str(linker), f"AR_{TARGET.replace('-', '_')}": str(archiver)}
    configure(
        folder,
        {
            "build": build,
            f"target.{TARGET}": {"linker": str(linker), "runner": emulator},
            # A processor that is set in the environment is used instead.
            "env": compiler | {"QEMU_CPU": PROCESSOR},
        },
    )


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def configure(folder, tables):
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for table, entries in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {quoted(value)}" for key, value in entries.items()]
    (folder / "cargo.toml").write_text("\n".join(lines) + "\n")


def quoted(value):
    if isinstance(value, list):
        return "[" + ", ".join(map(quoted, value)) + "]"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    sys.exit(main())
