#!/usr/bin/env python3
"""Prepares a compiler for WebAssembly.

    python tests/wasm/setup.py FOLDER

Writes FOLDER/cargo, which is cargo for the target wasm32-unknown-unknown with relaxed 128-bit vectors. It uses the installed
compiler if that has the target (`rustup target add wasm32-unknown-unknown`). Otherwise it uses Debian's, and compiles the
standard library from Debian's source package: no Debian package has it for this target. Linking takes the linker of the
installed compiler in either case. Packages are pinned and unpacked as for arm64: see tests/arm64/setup.py.
"""

import platform
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "arm64"))
from setup import COMPILER, RUST, RUSTC, Archive, configure, script, shlex, unpack  # noqa: E402

TARGET = "wasm32-unknown-unknown"
SOURCE = ("rust-web-src", "all", RUST, "9de8597c464d0a9283672973ed7e50092b49a92b95861429043fe8b57468a208")
# The parts of the source that the standard library is compiled from.
LIBRARY = "usr/src/rustc-{version}"
FLAGS = ["-Ctarget-feature=+simd128,+relaxed-simd"]

CARGO = """#!/bin/sh
exec {variables}cargo --config {configuration} "$@"
"""


def main():
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    target = {"rustflags": FLAGS}
    tables = {"build": {"target": TARGET}, f"target.{TARGET}": target}
    try:
        variables = ""
        if not supports_target():
            if platform.machine() != "x86_64":
                raise ValueError(f"expected a compiler with the target {TARGET}; run `rustup target add {TARGET}`")
            tables["build"]["rustc"] = str(debian(folder))
            # For options that only nightly compilers have otherwise.
            tables["unstable"] = {"build-std": ["std", "panic_abort"]}
            variables = "env RUSTC_BOOTSTRAP=1 "
            target["linker"] = str(linker())
        configure(folder, tables)
        settings = shlex.quote(str(folder / "cargo.toml"))
        script(folder / "cargo", CARGO.format(variables=variables, configuration=settings))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def supports_target():
    """Whether the installed compiler has a standard library for WebAssembly."""
    command = ["rustc", "--print", "target-libdir", "--target", TARGET]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode == 0 and any(Path(result.stdout.strip()).glob("libstd-*"))


def debian(folder):
    """The path of Debian's compiler, with the source of its standard library."""
    archive, host = Archive(folder), folder / "host"
    for package in (*COMPILER, SOURCE):
        if package[1] != "arm64":
            unpack(archive.fetch(package), host)
    link = host / "usr/lib/rustlib/src/rust"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(host / LIBRARY.format(version=RUST.split("+")[0]))
    return script(folder / "rustc", RUSTC.format(host=shlex.quote(str(host))))


def linker():
    def printed(what):
        done = subprocess.run(["rustc", "--print", what], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    found = Path(printed("sysroot")) / "lib/rustlib" / printed("host-tuple") / "bin/rust-lld"
    if not found.is_file():
        raise ValueError(f"expected a linker for WebAssembly at `{found}`, but found none; install Rust with rustup")
    return found


if __name__ == "__main__":
    sys.exit(main())
