"""The npm packages: `kivuml`, which users install, a package per platform with the native module, and `kivuml-wasm`.

    python3 packaging/npm.py OUT MODULE [LIBRARY...]
    python3 packaging/npm.py OUT --wasm FOLDER

Writes to the folder OUT the packages for this machine: `kivuml`, and in its `node_modules` the one for this platform with
the native module MODULE and the files of ONNX Runtime; or `kivuml-wasm` with the modules and the code that wasm/bindgen wrote to FOLDER. packaging/dist.py makes the packages of a release. Needs only Python's standard library.
"""

import json
import platform
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The names that npm gives the architectures.
ARCHITECTURES = {"x86_64": "x64", "arm64": "arm64"}
MODULE = "kivuml.node"
MAIN = "index.js"
PROGRAM = "kivu.js"
SUFFIXES = (".js", ".mjs", ".ts", ".mts")
# The modules, by the names that wasm/bindgen gives them: the second one has relaxed instructions.
WASM = {"kivuml_wasm_baseline.wasm": "kivuml.wasm", "kivuml_wasm_bg.wasm": "kivuml-relaxed.wasm"}
GLUE = "kivuml_wasm.js"
# What `kivuml-wasm` takes from `kivuml`.
SHARED = ("arguments.js", "errors.js", "model.js")
SHARED_TYPES = ("types.d.ts", "native-module.d.ts")


def platform_name(architecture):
    return f"{template()['name']}-linux-{ARCHITECTURES[architecture]}"


def template():
    return json.loads((ROOT / "node/package.json").read_text())


def repository():
    """The address of the repository on GitHub, once it has one: npm compares it with the workflow that publishes."""
    found = re.search(r'^repository = "(.*)"', (ROOT / "program/Cargo.toml").read_text(), re.M)
    return found and found[1]


def manifest(name=None, **fields):
    """The manifest of `kivuml`, or the one of a package with another name."""
    # Not `tomllib`, which needs Python 3.11: tests make a package, too.
    workspace = (ROOT / "Cargo.toml").read_text().split("[workspace.package]")[1]
    version, license = (re.search(rf'^{key} = "(.*)"', workspace, re.M)[1] for key in ("version", "license"))
    found = template()
    kept = found if name is None else {key: found[key] for key in ("description", "engines")}
    made = {"name": name or found["name"], "version": version, "license": license} | kept | fields
    if address := repository():
        made["repository"] = {"type": "git", "url": f"git+{address}.git"}
    return as_json(made)


def as_json(manifest):
    return (json.dumps(manifest, indent=2) + "\n").encode()


def main_files():
    """The files of `kivuml`, but its manifest."""
    sources = sorted(file for file in (ROOT / "node/kivuml").iterdir() if file.suffix in SUFFIXES)
    files = {file.name: file for file in sources}
    return files | {"README.md": ROOT / "node/README.md", "LICENSE": ROOT / "LICENSE"}


def platform_files(module, library):
    """The native module with its library, for a platform's package."""
    own = {MODULE: module, MAIN: ROOT / "node/platform" / MAIN}
    return own | {f"lib/{file.name}": file for file in library}


def platform_manifest(architecture):
    constraints = {"os": ["linux"], "cpu": [ARCHITECTURES[architecture]], "libc": ["glibc"]}
    return manifest(platform_name(architecture), main=f"./{MAIN}", **constraints)


def wasm_files(generated):
    """The files of `kivuml-wasm`: its own, and those that it shares with `kivuml`, as bytes."""
    own = {file.name: file.read_bytes() for file in sorted((ROOT / "wasm/kivuml").iterdir())}
    shared = {name: as_module((ROOT / "node/kivuml" / name).read_text()).encode() for name in SHARED}
    types = {name: (ROOT / "node/kivuml" / name).read_bytes() for name in SHARED_TYPES}
    made = {name: (generated / file).read_bytes() for file, name in ({GLUE: GLUE} | WASM).items()}
    notices = {"README.md": (ROOT / "wasm/README.md").read_bytes(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    template = json.loads((ROOT / "wasm/package.json").read_text())
    released = {key: value for key, value in json.loads(manifest()).items() if key in ("version", "license", "repository")}
    return own | shared | types | made | notices | {"package.json": as_json(template | released)}


def as_module(code):
    """CommonJS as an ECMAScript module: only the forms below are allowed."""
    code = code.replace('"use strict";\n', "")
    code = re.sub(r'^const native = require\("(.*)"\);$', r'import * as native from "\1";', code, flags=re.M)
    code = re.sub(r'^const (\{[^}]*\}) = require\("(.*)"\);$', r'import \1 from "\2";', code, flags=re.M)
    code = re.sub(r"^module\.exports = (\{[^}:.]*\});$", r"export \1;", code, flags=re.M)
    if left := re.search(r"\brequire\(|\bmodule\.exports", code):
        sys.exit(f"expected code that is also an ECMAScript module, but found `{left[0]}`")
    return code


def write_wasm(out, generated):
    out.mkdir(parents=True)
    for path, contents in wasm_files(generated).items():
        (out / path).write_bytes(contents)


def main():
    out, module, *library = map(Path, sys.argv[1:])
    if out.exists():
        shutil.rmtree(out)
    if str(module) == "--wasm":
        write_wasm(out, *library)
        return
    architecture = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    own = out / "node_modules" / platform_name(architecture)
    for folder, files in ((out, main_files()), (own, platform_files(module, library))):
        for path, file in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / path)
    (out / PROGRAM).chmod(0o755)
    (out / "package.json").write_bytes(manifest())
    (own / "package.json").write_bytes(platform_manifest(architecture))


if __name__ == "__main__":
    main()
