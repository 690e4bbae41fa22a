"""The installer and the Homebrew formula of a release, from a server on this machine.

    TEST_NODE=FOLDER python3 tests/packaging/test_installers.py

The archives are made by packaging/dist.py, with a script in place of the program. TEST_NODE has Node.js in `bin`, and the
packages of tests/node/package.json.
"""

import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
sys.dont_write_bytecode = True

import dist  # noqa: E402

TOOLS = Path(os.environ["TEST_NODE"])
ADDRESS = "https://github.com/example/kivu"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; of the file `broken`, only the first half before the connection closes."""

    broken = None

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if path.name != Handler.broken:
            return super().do_GET()
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def log_message(self, *_):
        pass


def make_release(folder, says):
    """Archives for both architectures, with a program that prints `says`."""
    folder.mkdir()
    release = dist.Release(folder)
    release.repository = ADDRESS
    release.crates.write_text("{}")
    release.licenses.write_text("none\n")
    program, library = folder.parent / "program", folder.parent / "libonnxruntime.so.1"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    library.write_text("a library")
    for architecture in dist.MACHINES:
        release.archive(architecture, program, [library])
    release.installers(dist.MACHINES)
    release.sums()
    return release


class InstallerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.files, self.home = self.folder / "files", self.folder / "home"
        self.home.mkdir()
        self.release = make_release(self.files, "kivu of a test")
        Handler.broken = None
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(self.files)))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.base = f"http://127.0.0.1:{server.server_address[1]}"
        self.name = f"kivu-{self.release.version}-linux-{os.uname().machine}"
        self.archive = self.files / f"{self.name}.tar.gz"

    def install(self, path=None, script=None, **variables):
        environment = {"HOME": str(self.home), "PATH": path or os.environ["PATH"], "KIVU_INSTALL_FROM": self.base}
        # As `curl … | sh` passes it.
        text = script if script is not None else (self.files / "install.sh").read_text()
        return subprocess.run(
            ["sh"], input=text, cwd=self.folder, env=environment | variables, capture_output=True, text=True, timeout=60
        )

    def assert_refused(self, message, done):
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(message, done.stderr)
        self.assertEqual(self.installed(), [])

    def installed(self):
        """All files, and the installer's temporary folders."""
        found = (path for path in self.home.rglob("*") if not path.is_dir() or path.name.startswith("."))
        return sorted(str(path.relative_to(self.home)) for path in found if path.name != ".local")

    def commands(self, replaced=(), without=()):
        """A folder with the commands that the installer may use, and shell scripts in place of some of them."""
        folder = self.folder / "commands"
        folder.mkdir()
        names = "sh uname getconf sort head sha256sum tar gzip mktemp mkdir rm mv ln grep curl wget"
        for name in names.split():
            if name in dict(replaced):
                (folder / name).write_text(f"#!/bin/sh\n{dict(replaced)[name]}\n")
                (folder / name).chmod(0o755)
            elif name not in without and (found := shutil.which(name)):
                (folder / name).symlink_to(found)
        return str(folder)

    def run_installed(self):
        return subprocess.run([self.home / ".local/bin/kivu"], capture_output=True, text=True, check=True).stdout

    def test_it_installs_program_and_library(self):
        done = self.install()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"installed Kivu {self.release.version} as {self.home}/.local/bin/kivu", done.stdout)
        self.assertIn("is not in PATH", done.stdout)
        self.assertEqual(self.run_installed(), "kivu of a test\n")
        # The program finds its library next to the file that the link names.
        program = (self.home / ".local/bin/kivu").resolve()
        self.assertTrue((program.parent / "lib/libonnxruntime.so.1").is_file())
        self.assertEqual(
            [path.name for path in (self.home / ".local/lib").iterdir()], [self.name], "nothing temporary is left"
        )

    def test_it_replaces_an_older_one_only_by_a_complete_one(self):
        self.assertEqual(self.install().returncode, 0)
        shutil.rmtree(self.files)
        make_release(self.files, "a newer one")
        Handler.broken = self.archive.name
        self.assertNotEqual(self.install().returncode, 0)
        self.assertEqual(self.run_installed(), "kivu of a test\n")
        Handler.broken = None
        self.assertEqual(self.install().returncode, 0)
        self.assertEqual(self.run_installed(), "a newer one\n")
        self.assertEqual([path.name for path in (self.home / ".local/lib").iterdir()], [self.name])

    def test_an_interruption_leaves_a_program(self):
        self.assertEqual(self.install().returncode, 0)
        # The signal arrives while one of the moves runs.
        interrupted = {"mv": f'kill -TERM $PPID; exec {shutil.which("mv")} "$@"'}
        self.install(self.commands(interrupted.items()))
        self.assertEqual(self.run_installed(), "kivu of a test\n")
        self.assertEqual([path.name for path in (self.home / ".local/lib").iterdir()], [self.name])

    def test_a_prefix_may_be_relative_and_have_spaces(self):
        done = self.install(KIVU_INSTALL_PREFIX="home/a place")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = subprocess.run([self.home / "a place/bin/kivu"], capture_output=True, text=True, check=True)
        self.assertEqual(shown.stdout, "kivu of a test\n")

    def test_the_other_architecture_is_chosen_by_its_name(self):
        machines = {"x86_64": ("aarch64", "arm64"), "aarch64": ("x86_64", "amd64")}[os.uname().machine]
        for machine in machines:
            done = self.install(self.commands({"uname": f'[ "$1" = -m ] && echo {machine} || echo Linux'}.items()))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((self.home / f".local/lib/kivu-{self.release.version}-linux-{machines[0]}/kivu").is_file())
            shutil.rmtree(self.folder / "commands")

    def test_an_unknown_machine_is_refused(self):
        for answer, message in (
            ('[ "$1" = -m ] && echo riscv64 || echo Linux', "no program for the processor `riscv64`, only for x86_64 and aarch64"),
            ("echo Darwin", "no program for Darwin; use the container image"),
        ):
            self.assert_refused(message, self.install(self.commands({"uname": answer}.items())))
            shutil.rmtree(self.folder / "commands")

    def test_an_old_or_another_c_library_is_refused(self):
        for answer, message in (
            ("echo glibc 2.17", "needs glibc 2.28 or later, but found glibc 2.17"),
            ("exit 1", "needs glibc 2.28 or later, but found another C library"),
        ):
            self.assert_refused(message, self.install(self.commands({"getconf": answer}.items())))
            shutil.rmtree(self.folder / "commands")

    def test_a_wrong_checksum_is_refused(self):
        self.archive.write_bytes(self.archive.read_bytes() + b"x")
        self.assert_refused(f"the SHA-256 of {self.name}.tar.gz is not the one in SHA256SUMS", self.install())

    def test_a_missing_checksum_is_refused(self):
        sums = self.files / "SHA256SUMS"
        sums.write_text(sums.read_text().replace(self.name, "another"))
        self.assert_refused(f"has no checksum for {self.name}.tar.gz", self.install())

    def test_a_missing_file_is_refused(self):
        self.archive.unlink()
        self.assert_refused(f"cannot download `{self.base}/{self.name}.tar.gz`; nothing was installed", self.install())
        (self.files / "SHA256SUMS").unlink()
        self.assert_refused(f"cannot download `{self.base}/SHA256SUMS`; nothing was installed", self.install())

    def test_a_broken_download_is_refused(self):
        for broken in (self.archive.name, "SHA256SUMS"):
            Handler.broken = broken
            self.assert_refused("cannot download", self.install(self.commands(without=("wget",))))
            shutil.rmtree(self.folder / "commands")

    def test_a_program_that_does_not_run_is_not_installed(self):
        shutil.rmtree(self.files)
        make_release(self.files, "'; exit 3; echo '")
        self.assert_refused("the program does not run on this machine", self.install())

    def test_half_a_script_does_nothing(self):
        text = (self.files / "install.sh").read_text()
        for share in (0.3, 0.6, 0.9):
            self.install(script=text[: int(len(text) * share)])
            self.assertEqual(self.installed(), [])

    def test_wget_takes_the_place_of_curl(self):
        if shutil.which("wget") is None:
            self.skipTest("wget is not installed")
        done = self.install(self.commands(without=("curl",)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.run_installed(), "kivu of a test\n")

    def test_a_missing_tool_is_named(self):
        self.assert_refused("needs `curl` or `wget`, but found neither", self.install(self.commands(without=("curl", "wget"))))
        shutil.rmtree(self.folder / "commands")
        self.assert_refused("needs `sha256sum`", self.install(self.commands(without=("sha256sum",))))


class FormulaTest(unittest.TestCase):
    def test_it_is_ruby_with_the_archives_and_their_checksums(self):
        with tempfile.TemporaryDirectory() as folder:
            release = make_release(Path(folder, "files"), "kivu")
            formula = release.out / "kivu.rb"
            parser = [TOOLS / "bin/node", "--no-warnings", ROOT / "tests/packaging/formula.mjs", TOOLS]
            done = subprocess.run([*parser, formula], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            text = formula.read_text()
            found = re.findall(r'url "(.*)"\n +sha256 "(.*)"', text)
            expected = [
                (f"{ADDRESS}/releases/download/v{release.version}/{name}", hashlib.sha256((release.out / name).read_bytes()).hexdigest())
                for name in (f"kivu-{release.version}-linux-{machine}.tar.gz" for machine in ("x86_64", "aarch64"))
            ]
            self.assertEqual(found, expected)
            self.assertNotIn("@", text)
            formula.write_text(text.removesuffix("end\n"))
            self.assertNotEqual(subprocess.run([*parser, formula], capture_output=True).returncode, 0, "half a formula is no Ruby")


if __name__ == "__main__":
    unittest.main()
