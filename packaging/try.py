"""Installs and uses the packages of packaging/dist.py as their users do, without Rust and without a checkout.

    python packaging/try.py OUT BUNDLE [QEMU...]

BUNDLE is served with ONNX Runtime and with Kivu's own engine, and the recipe `minilm` is downloaded and built. The templates are deployed to the emulator of
tests/deploy, so this needs its Python packages. QEMU, with its options, runs programs of the other architecture;
without it they are skipped.
"""

import hashlib
import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tests/lambda"), str(ROOT / "tests/deploy")]

import archive  # noqa: E402
from emulator import Emulator  # noqa: E402

OUT, BUNDLE = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
# Commands run in other folders.
QEMU = [str(Path(word).absolute()) if Path(word).exists() else word for word in sys.argv[3:]]
MACHINE = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[MACHINE]
ARCHITECTURE = {"x86_64": "x86_64", "aarch64": "arm64"}
EVENT = (ROOT / "tests/lambda/http_plain.json").read_bytes()
MAX_WHEEL = 26e6
DIMENSIONS = 384


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r}")


def one(pattern):
    found = sorted(OUT.glob(pattern))
    expect(f"files named {pattern} in {OUT}", 1, len(found))
    return found[0]


def serve(command, home, model=BUNDLE, engines=("onnx", "native"), **variables):
    """Serves a model with each engine, with an empty environment."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"} | variables
    for engine in engines:
        started = time.monotonic()
        serving = [*command, "serve", model, "--engine", engine, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(serving, cwd=home, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            address = process.stdout.readline().split()[-1]
            request = urllib.request.Request(f"{address}/embed", b'{"inputs": "hello"}', {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                expect("dimensions", DIMENSIONS, len(json.load(response)[0]))
        finally:
            process.terminate()
            process.wait()
        expect("the exit code after SIGTERM", 0, process.returncode)
        print(f"  {engine}: {time.monotonic() - started:.2f} s", flush=True)


def unpack(file, folder):
    """Unpacks an archive; returns the only folder in it."""
    with tarfile.open(file) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.iterdir())


def the_checksums(_):
    for line in (OUT / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        expect(name, digest, hashlib.sha256((OUT / name).read_bytes()).hexdigest())


def the_wheel(folder):
    wheel = one(f"*_{MACHINE}.whl")
    expect(f"{wheel.stat().st_size} bytes, at most {MAX_WHEEL:.0f}", True, wheel.stat().st_size <= MAX_WHEEL)
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel], check=True)
    print(f"  environment and installation: {time.monotonic() - started:.1f} s")
    shown = subprocess.run([folder / "venv/bin/kivu", "--version"], capture_output=True, text=True, check=True).stdout.split()
    expect("the version", wheel.name.split("-")[1], shown[1])
    path = f"{folder}/venv/bin:/usr/bin:/bin"
    serve(["kivu"], folder, PATH=path)
    # Downloads the weights of a recipe of the program, and builds them.
    serve(["kivu"], folder, "minilm", ["auto"], PATH=path)
    code = "from kivuml import load; print(load('minilm').encode('hello').shape)"
    environment = {"HOME": str(folder), "PATH": path}
    shown = subprocess.run(["python", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    expect("the package's vectors", f"({DIMENSIONS},)\n", shown.stdout)
    subprocess.run([folder / "venv/bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", "kivuml"], check=True)
    expect("files after the removal", [], list((folder / "venv").rglob("*kivu*")))


def the_archive(folder):
    serve([unpack(one(f"kivu-*-linux-{MACHINE}.tar.gz"), folder / "archive") / "kivu"], folder)


def the_image(folder):
    """What the Containerfile does, in a folder instead of an image."""
    root = unpack(one(f"kivu-*-linux-{MACHINE}.tar.gz"), folder / "image")
    lines = [line.split(maxsplit=1) for line in (root / "Containerfile").read_text().splitlines() if line and line[0] != "#"]
    instructions = dict(lines)
    expect("the copy", ". /opt/kivu", instructions["COPY"])
    program = json.loads(instructions["ENTRYPOINT"])[0].replace("/opt/kivu", str(root))
    shown = subprocess.run([program, *json.loads(instructions["CMD"])[:1], "--help"], capture_output=True, text=True, check=True)
    expect("the help of its command", True, "serve" in shown.stdout)
    # Libraries of gcr.io/distroless/cc.
    known = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6"}
    for file in (root / "kivu", *root.glob("lib/*.so*")):
        listed = subprocess.run(["readelf", "--dynamic", file], capture_output=True, text=True, check=True).stdout
        needed = {line.split("[")[1].rstrip("]") for line in listed.splitlines() if "(NEEDED)" in line}
        expect(f"libraries of {file.name}", set(), {each for each in needed - known if not each.startswith("ld-linux")})


def the_npm_package(folder):
    if shutil.which("npm") is None:
        return print("  skipped: npm is not installed")
    version = one("kivu-*-linux-x86_64.tar.gz").name.split("-")[1]
    node = {"x86_64": "x64", "aarch64": "arm64"}[MACHINE]
    files = [OUT / f"kivuml-linux-{node}-{version}.tgz", OUT / f"kivuml-{version}.tgz"]
    (folder / "npm").mkdir()
    subprocess.run(["npm", "install", "--offline", "--silent", "--no-audit", "--no-fund", "--prefix", folder / "npm", *files], check=True)
    serve([folder / "npm/node_modules/.bin/kivu"], folder)
    code = "import('kivuml').then(async ({ load }) => console.log((await (await load(process.argv[1])).encode('hello')).length))"
    shown = subprocess.run(["node", "--eval", code, BUNDLE], cwd=folder / "npm", capture_output=True, text=True, check=True)
    expect("the package's vectors", f"{DIMENSIONS}\n", shown.stdout)


def the_function(folder):
    with zipfile.ZipFile(one(f"kivu-*-api-{ARCHITECTURE[MACHINE]}.zip")) as packed:
        packed.extractall(folder / "function")
    (folder / "function/bootstrap").chmod(0o755)
    shutil.copytree(BUNDLE, folder / "function/models" / BUNDLE.name)
    response, *_ = archive.invoke(folder / "function", {"KIVU_AUTH__MODE": "none"}, EVENT)
    expect("the function's response", 200, response["statusCode"])


def the_templates(folder):
    """Deploys as the documentation describes."""
    root = unpack(one("kivu-*-aws.tar.gz"), folder / "aws")
    for name in ("api", "batch"):
        function = one(f"kivu-*-{name}-{ARCHITECTURE[MACHINE]}.zip")
        subprocess.run(["unzip", "-q", function, "-d", root / "functions" / name], check=True)
    shutil.copytree(BUNDLE, root / "functions/api/models" / BUNDLE.name)
    sam = Path(sys.executable).with_name("sam")
    with Emulator(folder / "log") as emulator:
        environment = os.environ | emulator.environment | {"SAM_CLI_TELEMETRY": "0"}
        parameters = f"Architecture={ARCHITECTURE[MACHINE]} AuthMode=none"
        command = [sam, "deploy", "--parameter-overrides", parameters]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        outputs = emulator.client("cloudformation").describe_stacks(StackName="kivu")["Stacks"][0]["Outputs"]
        url = next(output["OutputValue"] for output in outputs if output["OutputKey"] == "Url")
        connection = http.client.HTTPConnection("127.0.0.1", emulator.port, timeout=60)
        host = url.removeprefix("https://").split(".")[0]
        headers = {"host": f"{host}.execute-api.localhost:{emulator.port}", "content-type": "application/json"}
        connection.request("POST", "/embed", b'{"inputs": "hello"}', headers)
        response = connection.getresponse()
        expect("the deployment", (200, DIMENSIONS), (response.status, len(json.loads(response.read())[0])))


def the_other_architecture(folder):
    if not QEMU:
        return print(f"  skipped: no emulator of {OTHER}")
    serve([*QEMU, unpack(one(f"kivu-*-linux-{OTHER}.tar.gz"), folder / "other") / "kivu"], folder)


def main():
    with tempfile.TemporaryDirectory() as name:
        for step in (
            the_checksums, the_wheel, the_archive, the_image, the_npm_package, the_function, the_templates, the_other_architecture,
        ):
            print(step.__name__.replace("_", " "), flush=True)
            folder = Path(name, step.__name__)
            folder.mkdir()
            step(folder)


if __name__ == "__main__":
    main()
