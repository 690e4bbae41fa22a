"""Makes the packages of a release from compiled programs.

    python3 packaging/dist.py OUT x86_64=PROGRAMS [arm64=PROGRAMS]

PROGRAMS is a folder of packaging/compile.py. For each architecture this writes to OUT a wheel, an archive, the npm
package of the platform and the archives of both functions without models; and the templates for AWS, the list of crates
with their licences, and `SHA256SUMS`. `wasm=FOLDER` adds the npm package of `make wasm`. If program/Cargo.toml has a
`repository`, whose GitHub releases have the files, it also makes the installer and the Homebrew formula. The same
programs make the same packages. Needs the library of `kivu doctor --fix --function`, and only Python's standard library.
"""

import base64
import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "functions"))
sys.dont_write_bytecode = True

import npm  # noqa: E402
import package as function  # noqa: E402
import parts  # noqa: E402
from compile import GLIBC, MACHINES  # noqa: E402

LICENSES = ("LICEN[CS]E*", "COPYING*", "NOTICE*")
# The name on PyPI and npm, where others have `kivu`.
PACKAGE = "kivuml"
FUNCTIONS = """The archives of the functions belong here: unpack kivu-VERSION-api-ARCHITECTURE.zip to api, and
kivu-VERSION-batch-ARCHITECTURE.zip to batch; then put bundles below api/models.
"""
# One time for all files, in seconds since 1970; the earliest that zip archives have.
TIME = 315532800


class Release:
    def __init__(self, out):
        self.out = out
        manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
        self.version, self.license = manifest["version"], manifest["license"]
        self.repository = npm.repository()
        self.crates, self.licenses = out / f"kivu-{self.version}.cdx.json", out / f"kivu-{self.version}-licenses.txt"

    def notices(self):
        """The files that every package contains."""
        return {"LICENSE": ROOT / "LICENSE", "kivu.cdx.json": self.crates, "third-party-licenses.txt": self.licenses}

    def collect_licenses(self):
        """Writes the licences of all crates, each text once."""
        crates, texts = parts.crates()[1], {}
        for crate in crates:
            folder = Path(crate["manifest_path"]).parent
            for file in sorted(file for pattern in LICENSES for file in folder.glob(pattern) if file.is_file()):
                text = "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())
                texts.setdefault(text, set()).add(f"{crate['name']} {crate['version']}")
        sections = [f"{', '.join(sorted(names))}\n\n{text}\n" for text, names in texts.items()]
        self.licenses.write_text(f"\n{'=' * 80}\n\n".join(sections))

    def wheel(self, architecture, module, library):
        """Installs the Python package with its native module, which contains the command `kivu`."""
        tag = f"cp310-abi3-manylinux_{GLIBC.replace('.', '_')}_{MACHINES[architecture]}"
        info = f"{PACKAGE}-{self.version}.dist-info"
        project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
        required = "".join(f"Requires-Dist: {each}\n" for each in project["dependencies"])
        address = f"Project-URL: Repository, {self.repository}\n" if self.repository else ""
        metadata = (
            f"Metadata-Version: 2.4\nName: {PACKAGE}\nVersion: {self.version}\nSummary: {project['description']}\n"
            f"License-Expression: {self.license}\nLicense-File: LICENSE\nLicense-File: third-party-licenses.txt\nRequires-Python: {project['requires-python']}\n{required}{address}"
            f"Description-Content-Type: text/markdown\n\n{(ROOT / 'python/README.md').read_text()}"
        )
        sources = sorted(file for file in (ROOT / "python" / PACKAGE).iterdir() if file.suffix in (".py", ".pyi", ".typed"))
        files = {f"{PACKAGE}/{file.name}": (file.read_bytes(), 0o644) for file in sources}
        files[f"{PACKAGE}/_native.abi3.so"] = module.read_bytes(), 0o755
        files |= {f"{PACKAGE}/lib/{file.name}": (file.read_bytes(), 0o644) for file in library}
        scripts = "".join(f"{name} = {function}\n" for name, function in project["scripts"].items())
        files |= {
            f"{info}/entry_points.txt": (f"[console_scripts]\n{scripts}".encode(), 0o644),
            f"{info}/METADATA": (metadata.encode(), 0o644),
            f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: kivu\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
            f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
            f"{info}/licenses/third-party-licenses.txt": (self.licenses.read_bytes(), 0o644),
            f"{info}/sboms/kivu.cdx.json": (self.crates.read_bytes(), 0o644),
        }
        record = f"{info}/RECORD"
        lines = [f"{name},sha256={urlsafe(content)},{len(content)}" for name, (content, _) in files.items()]
        files[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode(), 0o644
        with zipfile.ZipFile(self.out / f"{PACKAGE}-{self.version}-{tag}.whl", "w") as archive:
            for name, (content, mode) in files.items():
                entry = zipfile.ZipInfo(name, function.TIME)
                entry.external_attr = (0o100000 | mode) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content, compresslevel=9)

    def archive(self, architecture, program, library):
        """One folder with the program, its library, and the Containerfile."""
        files = {"kivu": program, "Containerfile": ROOT / "packaging/Containerfile", "README.md": ROOT / "README.md"} | self.notices()
        files |= {f"lib/{file.name}": file for file in library}
        name = f"kivu-{self.version}-linux-{MACHINES[architecture]}"
        self.tar(f"{name}.tar.gz", {f"{name}/{path}": file.read_bytes() for path, file in files.items()}, {f"{name}/kivu"})

    def npm(self, architecture, module, library):
        """The package that `kivuml` for npm installs on this platform."""
        files = npm.platform_files(module, library) | self.notices()
        contents = {f"package/{path}": file.read_bytes() for path, file in files.items()}
        contents["package/package.json"] = npm.platform_manifest(architecture)
        self.tar(f"{npm.platform_name(architecture)}-{self.version}.tgz", contents)

    def npm_main(self, architectures):
        """The package that users install, whose code is the same for all platforms."""
        packages = {npm.platform_name(each): self.version for each in architectures}
        files = {f"package/{path}": file.read_bytes() for path, file in npm.main_files().items()}
        files["package/package.json"] = npm.manifest(optionalDependencies=packages)
        self.tar(f"{PACKAGE}-{self.version}.tgz", files, {f"package/{npm.PROGRAM}"})

    def npm_wasm(self, folder):
        """The package of `make wasm`."""
        files = {f"package/{file.name}": file.read_bytes() for file in folder.iterdir()}
        self.tar(f"{PACKAGE}-wasm-{self.version}.tgz", files)

    def functions(self, architecture, programs, library):
        """The archives of both functions, without models."""
        for name in ("api", "batch"):
            bootstrap = programs / name
            function.check_glibc(bootstrap)
            files = {"bootstrap": bootstrap, "kivu.toml": ROOT / f"functions/{name}/kivu.toml"} | self.notices()
            files |= function.library_files(library, bootstrap)
            function.write_archive(self.out / f"kivu-{self.version}-{name}-{architecture}.zip", files)

    def templates(self):
        """The templates, for functions that are unpacked below `functions/` instead of compiled."""
        name = f"kivu-{self.version}-aws"
        files = {path: (ROOT / path).read_text() for path in ("template.yaml", "samconfig.toml")}
        files |= {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "deploy").glob("*.yaml"))}
        replacements = {
            "template.yaml": ("CodeUri: functions", "functions/api"),
            "deploy/large.yaml": ("CodeUri: ../functions", "../functions/api"),
            "deploy/stream.yaml": ("CodeUri: ../functions", "../functions/api"),
            "deploy/batch.yaml": ("CodeUri: ../functions", "../functions/batch"),
        }
        for path, (before, folder) in replacements.items():
            count = files[path].count(f"{before}\n")
            if count != 1:
                sys.exit(f"expected `{before}` once in {path}, but found it {count} times")
            files[path] = files[path].replace(f"{before}\n", f"CodeUri: {folder}\n").replace("      BuildMethod: makefile\n", "")
        files["deploy/batch.yaml"] = files["deploy/batch.yaml"].replace("../functions/batch/large.asl.json", "large.asl.json")
        files["deploy/large.asl.json"] = (ROOT / "functions/batch/large.asl.json").read_text()
        files |= {"LICENSE": (ROOT / "LICENSE").read_text(), "functions/README": FUNCTIONS}
        self.tar(f"{name}.tar.gz", {f"{name}/{path}": text.encode() for path, text in files.items()})

    def tar(self, name, files, programs=frozenset()):
        with open(self.out / name, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=TIME) as packed, \
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, content in sorted(files.items()):
                entry = tarfile.TarInfo(path)
                entry.size, entry.mtime, entry.mode = len(content), TIME, 0o755 if path in programs else 0o644
                archive.addfile(entry, io.BytesIO(content))

    def installers(self, architectures):
        """The shell script and the formula that install the archives from the repository's release."""
        words = {
            "VERSION": self.version, "GLIBC": GLIBC, "LICENSE": self.license, "REPOSITORY": self.repository,
            "BASE": f"{self.repository}/releases/download/v{self.version}",
        }
        self.fill("install.sh", words)
        if set(architectures) == set(MACHINES):
            for machine in MACHINES.values():
                archive = self.out / f"kivu-{self.version}-linux-{machine}.tar.gz"
                words[f"SHA256_{machine}"] = hashlib.sha256(archive.read_bytes()).hexdigest()
            self.fill("kivu.rb", words)

    def fill(self, name, words):
        """Writes a template of this folder with its `@WORDS@`."""
        text = (ROOT / "packaging" / name).read_text()
        (self.out / name).write_text(re.sub("@([A-Za-z0-9_]+)@", lambda found: words[found[1]], text))

    def sums(self):
        files = sorted(file for file in self.out.iterdir() if file.name != "SHA256SUMS")
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        (self.out / "SHA256SUMS").write_text("".join(lines))
        for file in files:
            print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")


def urlsafe(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    release = Release(out)
    subprocess.run([sys.executable, ROOT / "functions/parts.py", release.crates], check=True)
    release.collect_licenses()
    built = dict(pair.split("=", 1) for pair in sys.argv[2:])
    if wasm := built.pop("wasm", None):
        release.npm_wasm(Path(wasm))
    for architecture, programs in built.items():
        programs, folder = Path(programs), ROOT / ".kivu" / architecture / "onnxruntime"
        program = programs / "kivu"
        function.GLIBC = tuple(map(int, GLIBC.split(".")))
        function.check_glibc(program)
        library = list(function.library_files(folder, program).values())
        module = programs / "libkivu_python.so"
        function.check_glibc(module)
        release.wheel(architecture, module, library)
        release.archive(architecture, program, library)
        addon = programs / "libkivu_node.so"
        function.check_glibc(addon)
        release.npm(architecture, addon, library)
        release.functions(architecture, programs, folder)
    release.npm_main(built)
    release.templates()
    if release.repository:
        release.installers(built)
    else:
        print("skipped: the installer and the formula need a `repository` in program/Cargo.toml")
    release.sums()


if __name__ == "__main__":
    main()
