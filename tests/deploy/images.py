"""Tests container images with Debian's tools: functions/image.py makes and pushes them, `docker-registry` takes them,
`skopeo` pulls them, `umoci` unpacks them, and AWS's emulator `aws-lambda-rie` runs the function in them.

    python tests/deploy/images.py API BUNDLE TOOLS

API is the compiled function, BUNDLE an embedding model, TOOLS the folder of tests/deploy/image_tools.py.
"""

import base64
import contextlib
import datetime
import hashlib
import io
import json
import logging
import os
import random
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "functions"), str(ROOT / "tests")]
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")

import image  # noqa: E402
import operate  # noqa: E402
import package  # noqa: E402
import registry  # noqa: E402
import requests  # noqa: E402
import samcli  # noqa: E402
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: E402
from ports import free_ports  # noqa: E402
from samcli.lib.providers.sam_function_provider import SamFunctionProvider  # noqa: E402
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider  # noqa: E402
from samcli.yamlhelper import yaml_dump  # noqa: E402
from template import EVERYTHING, FILES, Refused, Template, source  # noqa: E402

# The translator of SAM warns about metrics that it does not send.
logging.disable(logging.WARNING)

API, BUNDLE, TOOLS = (Path(argument).absolute() for argument in sys.argv[1:])
RIE = Path(samcli.__file__).parent / "local/rapid/aws-lambda-rie-x86_64"
EVENT = ROOT / "tests/lambda/http_plain.json"
WAIT_S = 30
# Of the password "sesame" for the user AWS.
PASSWORDS = "AWS:$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW\n"


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected!r}, but found {found!r}")


def run(tool, *arguments):
    libraries = {"LD_LIBRARY_PATH": str(TOOLS / "usr/lib/x86_64-linux-gnu")}
    done = subprocess.run([TOOLS / "usr/bin" / tool, *map(str, arguments)], env=os.environ | libraries, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tool} {arguments}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect_refusal(what, message, action, *arguments):
    """An action is refused, with a message that contains this one."""
    try:
        action(*arguments)
    except (image.ImageError, registry.RegistryError) as error:
        if message not in str(error):
            sys.exit(f"{what}: expected `{message}`, but found `{error}`")
    else:
        sys.exit(f"{what}: expected a refusal")


class DockerRegistry:
    """Debian's registry, with a password or without, on a free port."""

    def __init__(self, folder, *options):
        self.folder, self.host = folder, f"127.0.0.1:{free_ports(1)[0]}"
        self.options = {
            "REGISTRY_HTTP_ADDR": self.host, "REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY": str(folder / "registry"), **dict(options),
        }

    def __enter__(self):
        self.folder.mkdir(exist_ok=True)
        settings = self.folder / "registry.yml"
        settings.write_text("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {}}\nhttp: {}\n")
        self.process = subprocess.Popen([TOOLS / "usr/bin/docker-registry", "serve", settings], env=os.environ | self.options,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(self.host.split(":"), timeout=1).close()
                return self
            time.sleep(0.02)
        sys.exit("docker-registry did not start")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def images(self, name):
        """The manifests of a repository."""
        found = self.folder / "registry/docker/registry/v2/repositories" / name / "_manifests/revisions/sha256"
        return sorted(each.name for each in found.glob("*"))


class TokenServer(ThreadingHTTPServer):
    """Gives anyone a token for reading, as public registries do; `certificate` verifies its signature."""

    daemon_threads = True

    def __init__(self, certificate):
        self.key, self.asked = rsa.generate_private_key(65537, 2048), []
        name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens")]), datetime.datetime.now(datetime.timezone.utc)
        day = datetime.timedelta(days=1)
        signed = x509.CertificateBuilder(name, name, self.key.public_key(), 1, now - day, now + day).sign(self.key, hashes.SHA256())
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        self.header = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(signed.public_bytes(serialization.Encoding.DER)).decode()]}
        super().__init__(("127.0.0.1", 0), TokenHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def token(self, scope):
        kind, name, actions = scope.split(":")
        now = int(time.time())
        claims = {"iss": "tokens", "sub": "", "aud": "registry", "exp": now + 60, "nbf": now - 60, "iat": now, "jti": "1",
                  "access": [{"type": kind, "name": name, "actions": [action for action in actions.split(",") if action == "pull"]}]}
        text = ".".join(unpadded(json.dumps(part).encode()) for part in (self.header, claims))
        return f"{text}.{unpadded(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class TokenHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = dict(parse_qsl(urlsplit(self.path).query))
        self.server.asked.append((asked["service"], asked["scope"], self.headers["Authorization"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": self.server.token(asked["scope"])}).encode())

    def log_message(self, *_):
        pass


def unpadded(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Breaking(socketserver.ThreadingTCPServer):
    """Forwards to a registry, and breaks connections off where `breaks`, a function of what arrives, says so."""

    daemon_threads = True

    def __init__(self, target, breaks):
        self.target, self.breaks, self.sent, self.broken, self.methods = target.split(":"), breaks, 0, 0, []
        super().__init__(("127.0.0.1", 0), None)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def host(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def finish_request(self, client, _):
        with socket.create_connection(self.target) as server:
            threading.Thread(target=self.forward, args=(server, client), daemon=True).start()
            while data := client.recv(8192):
                self.sent += len(data)
                # A request begins with its headers, which are sent alone.
                self.methods += [data.split()[0]] if data.partition(b"\r\n")[0].endswith(b"HTTP/1.1") else []
                if self.breaks(self):
                    self.broken += 1
                    break
                server.sendall(data)

    @staticmethod
    def forward(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


def pack(folder):
    """A packed function, as for an image."""
    built = folder.parent / "built"
    (built / "api").mkdir(parents=True)
    subprocess.run(["strip", "-o", built / "api/bootstrap", API], check=True)
    package.BUILT, package.PARTS = built, built / "kivu.cdx.json"
    package.PARTS.write_text("{}")
    sys.argv = ["package.py", str(folder), "--binary", "api", "--bundle", str(BUNDLE), "--image"]
    with contextlib.redirect_stdout(io.StringIO()):
        package.main()


def program(architecture, text=b""):
    """What stands for a program where it is not run, since compressing a real one takes seconds."""
    return b"\x7fELF" + bytes(14) + image.ARCHITECTURES[architecture][1].to_bytes(2, "little") + text


def push_base(host, folder):
    """Pushes a base with the C library for both architectures, made by umoci, and an index of both."""
    root, layout, manifests = folder / "root", folder / "base", []
    for line in subprocess.run(["ldd", API], capture_output=True, text=True, check=True).stdout.splitlines():
        path = next((Path(word) for word in line.split() if word.startswith("/")), None)
        if path:
            (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, root / path.relative_to("/"))
            (root / path.relative_to("/")).chmod(0o755)
    for name in ("tmp", "proc"):
        (root / name).mkdir()
    run("umoci", "init", "--layout", layout)
    for architecture in ("amd64", "arm64"):
        of = f"{layout}:{architecture}"
        run("umoci", "new", "--image", of)
        run("umoci", "insert", "--rootless", "--image", of, root if architecture == "amd64" else folder / "root/tmp", "/")
        run("umoci", "config", "--image", of, "--architecture", architecture, "--config.env", "LAMBDA_RUNTIME_DIR=/var/runtime", "--config.cmd", "none")
        run("skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", f"oci:{of}", f"docker://{host}/base:{architecture}")
        found = requests.get(f"http://{host}/v2/base/manifests/{architecture}", headers={"Accept": image.MANIFEST})
        manifests.append({"mediaType": image.MANIFEST, "digest": found.headers["Docker-Content-Digest"], "size": len(found.content),
                          "platform": {"os": "linux", "architecture": architecture}})
    put = lambda tag, value: requests.put(f"http://{host}/v2/base/manifests/{tag}", json.dumps(value), headers={"Content-Type": value["mediaType"]}).raise_for_status()
    index = {"schemaVersion": 2, "mediaType": image.INDEX, "manifests": manifests}
    put("al2023", index)
    put("other", index | {"manifests": manifests[1:]})
    put("zstd", found.json() | {"mediaType": image.MANIFEST, "layers": [each | {"mediaType": f"{image.LAYER}+zstd"} for each in found.json()["layers"]],
                                "config": requests.get(f"http://{host}/v2/base/manifests/amd64", headers={"Accept": image.MANIFEST}).json()["config"]})
    config = requests.get(f"http://{host}/v2/base/blobs/{found.json()['config']['digest']}").json()
    for tag, of in (("windows", {"os": "windows"}), ("unnamed", {"os": None})):
        blob = folder / tag
        blob.write_text(json.dumps(config | {"architecture": "amd64"} | of))
        digest = f"sha256:{hashlib.sha256(blob.read_bytes()).hexdigest()}"
        registry.Registry(f"{host}/base").upload(digest, blob)
        put(tag, found.json() | {"mediaType": image.MANIFEST, "config": found.json()["config"] | {"digest": digest, "size": blob.stat().st_size}})


def answered(root):
    """The function's response to an event in AWS's emulator, with an unpacked image as the file system."""
    shutil.copy(RIE, root / "rie")
    (root / "rie").chmod(0o755)
    # The devices of a container that the emulator opens.
    (root / "dev").mkdir()
    (root / "dev/null").touch()
    url, api = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = json.loads((root.parent / "config.json").read_text())["process"]
    variables = dict(each.split("=", 1) for each in settings["env"])
    expect("a variable of the base", "/var/runtime", variables["LAMBDA_RUNTIME_DIR"])
    variables |= {"KIVU_AUTH__MODE": "none", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769"}
    options = ["--runtime-interface-emulator-address", url, "--runtime-api-address", api, "--log-level", "error"]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *user, f"--root={root}", f"--wd={settings['cwd']}", "/rie", *options, *settings["args"]]
    with tempfile.TemporaryFile() as log:
        function = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
        try:
            end = time.monotonic() + WAIT_S
            while time.monotonic() < end:
                with contextlib.suppress(ConnectionError, urllib.error.URLError):
                    with urllib.request.urlopen(f"http://{url}/2015-03-31/functions/function/invocations", EVENT.read_bytes(), timeout=WAIT_S) as response:
                        return json.loads(response.read())
                time.sleep(0.05)
            log.seek(0)
            sys.exit(f"the emulator does not answer: {log.read().decode(errors='replace')[-2000:]}")
        finally:
            function.terminate()
            function.wait()


def sent(made, target):
    """The image's name in a registry, and how many blobs were sent."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        name = made.push(target)
    return name, int(said.getvalue().split("sent ")[1].split()[0])


def functions_run(base, target, folder):
    """The function answers in an image that others have pulled and unpacked."""
    function = folder / "ApiFunction"
    pack(function)
    made = image.make(function, "api", "x86_64", base, folder / "real")
    name, _ = sent(made, target)
    made.save(folder / "image.tar")
    for form in ("docker-archive", "oci-archive"):
        config = json.loads(run("skopeo", "inspect", "--config", f"{form}:{folder / 'image.tar'}"))
        expect(f"the program of the {form}", (["/var/task/bootstrap"], "amd64"), (config["config"]["Entrypoint"], config["architecture"]))
    run("skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", "--src-creds", "AWS:sesame", f"docker://{name}", f"oci:{folder / 'pulled'}:api")
    run("umoci", "unpack", "--rootless", "--image", f"{folder / 'pulled'}:api", folder / "unpacked")
    root = folder / "unpacked/rootfs"
    names = lambda below: sorted((str(file.relative_to(below)), file.read_bytes()) for file in below.rglob("*") if file.is_file())
    expect("the files", True, names(function) == names(root / "var/task"))
    expect("modes", (0o755, 0o644), tuple((root / "var/task" / file).stat().st_mode & 0o777 for file in ("bootstrap", "kivu.toml")))
    response = answered(root)
    expect("the response", 200, response["statusCode"])
    expect("a vector", True, len(json.loads(response["body"])[0]) > 8)
    return function


def containerfiles_configure_the_same(made):
    """Docker's image has the same configuration."""
    config = json.loads(made.blob(made.config).read_bytes())["config"]
    lines = [line.split(maxsplit=1) for line in (ROOT / "functions/Containerfile").read_text().splitlines() if line and line[0] != "#"]
    found = {name: value for name, value in lines}
    expect("functions/Containerfile", (f"BASE={image.BASE}", "${BASE}", f". {config['WorkingDir']}", config["WorkingDir"], config["Entrypoint"], []),
           (found["ARG"], found["FROM"], found["COPY"], found["WORKDIR"], json.loads(found["ENTRYPOINT"]), json.loads(found["CMD"])))
    expect("its variable", True, found["ENV"] in config["Env"] and "Cmd" not in config)


def images_share_layers(base, target, folder, function):
    """The same files make the same image; another program, model or architecture changes only its layer."""
    make = lambda name, architecture="x86_64": image.make(folder / name / "ApiFunction", "api", architecture, base, folder / f"{name}-layout")
    for name in ("one", "two"):
        # Copies have other times and modes.
        shutil.copytree(function, folder / name / "ApiFunction", copy_function=shutil.copyfile)
        (folder / name / "ApiFunction/bootstrap").write_bytes(program("x86_64"))
        (folder / name / "ApiFunction/bootstrap").chmod(0o600 if name == "one" else 0o777)
    made = make("one")
    containerfiles_configure_the_same(made)
    expect("the digest of a second build", made.manifest, make("two").manifest)
    expect("layers that are pushed already: base and model", 2, sent(made, target)[1])
    expect("blobs of a second push", 0, sent(made, target)[1])
    changed = folder / "two/ApiFunction"
    (changed / "bootstrap").write_bytes(program("x86_64", b"changed"))
    expect("blobs after a change of the program", 2, sent(make("two"), target)[1])
    (changed / f"models/{BUNDLE.name}/manifest.toml").write_text("# another model\n")
    expect("blobs after a change of the model", 2, sent(make("two"), target)[1])
    (changed / "bootstrap").write_bytes(program("arm64"))
    shutil.copy(BUNDLE / "manifest.toml", changed / f"models/{BUNDLE.name}")
    shared = {layer["digest"] for layer in make("two", "arm64").layers} & {layer["digest"] for layer in made.layers}
    expect("layers that both architectures share", {made.layers[-2]["digest"]}, shared)
    return folder / "one/ApiFunction"


def public_bases_are_read_with_tokens(open_registry, folder, function, made):
    """A registry with the same base that gives a token to anyone, for reading."""
    tokens = TokenServer(folder / "certificate.pem")
    options = {
        "REGISTRY_AUTH": "token", "REGISTRY_AUTH_TOKEN_REALM": f"http://127.0.0.1:{tokens.server_port}/token/", "REGISTRY_AUTH_TOKEN_SERVICE": "registry",
        "REGISTRY_AUTH_TOKEN_ISSUER": "tokens", "REGISTRY_AUTH_TOKEN_ROOTCERTBUNDLE": str(folder / "certificate.pem"),
        "REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY": str(open_registry.folder / "registry"),
    }
    with DockerRegistry(folder / "public", *options.items()) as public:
        again = image.make(function, "api", "x86_64", f"{public.host}/base:al2023", folder / "public-layout")
        expect("the image with the same base", made.manifest, again.manifest)
        expect("one token, without credentials", [("registry", "repository:base:pull", None)], tokens.asked)
        expect_refusal("a push without permission", "401 UNAUTHORIZED", again.push, registry.Registry(f"{public.host}/kivu"))


def broken_registries_publish_nothing(open_registry, ecr, folder, function, base):
    made = image.make(function, "api", "x86_64", base, folder / "broken")
    public_bases_are_read_with_tokens(open_registry, folder, function, made)
    registry.time = SimpleNamespace(sleep=lambda _: None)
    breaking = Breaking(open_registry.host, lambda of: of.sent > made.base_size + 2500)
    target = registry.Registry(f"{breaking.host}/broken")
    expect_refusal("a push that breaks off", "the connection failed", made.push, target)
    expect("tries", registry.TRIES, breaking.broken)
    expect("images after it", [], open_registry.images("broken"))
    breaking.breaks = lambda _: False
    expect("its continuation, without the base's layer", len(made.layers), sent(made, target)[1])
    expect("the image", [made.manifest.removeprefix("sha256:")], open_registry.images("broken"))

    push = lambda host, password=None: (made.push, registry.Registry(f"{host}/refused", password))
    expect_refusal("a wrong password", "401 Unauthorized", *push(ecr.host, "wrong"))
    expect("images after it", [], ecr.images("refused"))
    with DockerRegistry(folder / "full", ("REGISTRY_STORAGE_MAINTENANCE_READONLY", "{enabled: true}")) as full:
        expect_refusal("a registry that takes nothing", "405 Method Not Allowed", *push(full.host))
    expect_refusal("no registry", "the connection failed", *push(full.host))
    expect_refusal("no name", "REGISTRY/NAME", registry.Registry, "kivu")


def large_blobs_continue(open_registry, folder):
    """Between parts, an upload continues; Debian's version of the registry may forget one that broke off within a part."""
    part, registry.PART = registry.PART, 1 << 16
    for what, breaks, uploads in (
        ("between parts", lambda of: not of.broken and of.methods.count(b"PATCH") == 3, [1]),
        ("within a part", lambda of: not of.broken and of.sent > 150_000, [1, 2]),
    ):
        content = random.Random(what).randbytes(250_000)
        digest, blob, breaking = f"sha256:{hashlib.sha256(content).hexdigest()}", folder / "blob", Breaking(open_registry.host, breaks)
        blob.write_bytes(content)
        expect(f"a large blob, broken off {what}", True, registry.Registry(f"{breaking.host}/large").upload(digest, blob))
        expect(f"breaks, {what}", 1, breaking.broken)
        expect(f"uploads, {what}", True, breaking.methods.count(b"POST") in uploads)
        expect("the blob", True, requests.get(f"http://{open_registry.host}/v2/large/blobs/{digest}").content == content)
        expect("sent once", True, 2 in uploads or breaking.sent < len(content) + registry.PART + 10_000)
    registry.PART = part


def bad_images_are_refused(open_registry, folder, function, base):
    refused = lambda what, message, base, architecture="x86_64": expect_refusal(what, message, image.make, function, "api", architecture, base, folder / "bad")
    refused("a base that does not exist", "404 MANIFEST_UNKNOWN", f"{open_registry.host}/base:none")
    refused("a base of another architecture", "is for linux/arm64, but the function for linux/amd64", f"{open_registry.host}/base:arm64")
    refused("a base of another system", "is for windows/amd64, but the function for linux/amd64", f"{open_registry.host}/base:windows")
    refused("a base without a system", "is for None/amd64, but the function for linux/amd64", f"{open_registry.host}/base:unnamed")
    refused("a base without the architecture", "has no image for amd64, but for arm64", f"{open_registry.host}/base:other")
    refused("a base that Lambda cannot read", "which Lambda does not read", f"{open_registry.host}/base:zstd")
    refused("a function of another architecture", "set ARCHITECTURE", base, "arm64")
    limit, image.MAX_UNPACKED = image.MAX_UNPACKED, sum(file.stat().st_size for file in function.rglob("*") if file.is_file())
    refused("an image that is too large with its base", "but found more than", base)
    image.MAX_UNPACKED -= 1
    refused("an image that is too large without it", "without the base", base)
    image.MAX_UNPACKED = limit
    shutil.rmtree(folder / "bad")
    digest = image.make(function, "api", "x86_64", base, folder / "bad").layers[0]["digest"]
    shutil.rmtree(folder / "bad")
    blob = open_registry.folder / f"registry/docker/registry/v2/blobs/sha256/{digest[7:9]}/{digest[7:]}/data"
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    refused("a damaged base", f"expected {digest}, but found sha256:", base)
    expect("what remains of it", [], list((folder / "bad/blobs/sha256").glob(digest[7:])))


def built_stack(folder, function):
    """The templates as `sam build` writes them, for the functions that become images."""
    for file in FILES:
        written = source(file)
        built = folder if file.parent == ROOT else folder / f"{file.stem.title()}Stack"
        built.mkdir(exist_ok=True)
        for name, resource in written["Resources"].items():
            properties = resource.get("Properties", {})
            if "CodeUri" in properties:
                properties["CodeUri"] = os.path.relpath(function, built)
            if "TemplateURL" in properties:
                properties["TemplateURL"] = f"{Path(properties['TemplateURL']).stem.title()}Stack/template.yaml"
        (built / "template.yaml").write_text(yaml_dump(written))


def stacks_get_images(ecr, folder, function, base):
    """`make deploy` with Package=image, with the registry in place of ECR."""
    operate.BUILT_STACK = folder / "stack"
    operate.BUILT_STACK.mkdir()
    clients = SimpleNamespace(
        create_repository=lambda **_: None, describe_repositories=lambda repositoryNames: {"repositories": [{"repositoryUri": f"{ecr.host}/{repositoryNames[0]}"}]},
        get_authorization_token=lambda: {"authorizationData": [{"authorizationToken": base64.b64encode(b"AWS:sesame").decode()}]},
        describe_stacks=lambda **_: {"Stacks": [{}]},
    )
    operate.boto3 = SimpleNamespace(client=lambda _: clients)
    image.LAYOUT = folder / "layouts"

    def command(parameters, local=False, base=base):
        built_stack(operate.BUILT_STACK, function)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            operate.image(SimpleNamespace(stack="kivu", parameters=parameters, base=base, local=local))
        return out.getvalue()

    archives = (operate.BUILT_STACK / "template.yaml")
    expect("archives", "", command("Architecture=x86_64"))
    expect("their template", True, "CodeUri" in archives.read_text() and "ImageUri" not in archives.read_text())
    # `make local`: Docker reads the archives, and SAM's own code finds the image of the function.
    docker = []
    operate.subprocess = SimpleNamespace(run=lambda of, **_: docker.append(of[:2]) or SimpleNamespace(returncode=0))
    expect("the output for `sam local`", "", command("Architecture=x86_64 Package=image", local=True))
    expect("Docker's commands", [["docker", "load"]] * 2, docker)
    stacks, _ = SamLocalStackProvider.get_stacks(str(archives), parameter_overrides={})
    function_in_sam = SamFunctionProvider(stacks).get("ApiFunction")
    expect("the function of `sam local`", ("Image", "kivu-api:x86_64"), (function_in_sam.packagetype, function_in_sam.imageuri))
    # A push that ends after the first image, and a base that is missing, change no template.
    built_stack(operate.BUILT_STACK, function)
    written = {file: file.read_text() for file in operate.BUILT_STACK.rglob("template.yaml")}
    push, pushes = image.Image.push, []

    def refused(made, target):
        pushes.append(made.name)
        if len(pushes) > 1:
            raise registry.RegistryError("full")
        return push(made, target)

    image.Image.push = refused
    for what, of, message in (("a push", base, "error: full"), ("a base", f"{base}-none", "404 MANIFEST_UNKNOWN")):
        try:
            command("Architecture=x86_64 Package=image", base=of)
        except SystemExit as end:
            expect(f"the end of {what}: {end}", True, message in str(end))
        else:
            sys.exit(f"expected {what} to be refused")
        expect(f"templates after {what}", True, {file: file.read_text() for file in written} == written)
    image.Image.push = push
    expect("pushes", 2, len(pushes))
    expect("SAM's option", f"--image-repository {ecr.host}/kivu-functions\n", command("Architecture=x86_64 Package=image"))
    for name in ("template.yaml", "StreamStack/template.yaml", "BatchStack/template.yaml"):
        text = (operate.BUILT_STACK / name).read_text()
        expect(f"an image without snapshots in {name}", (1, 0), (text.count(f"ImageUri: {ecr.host}/kivu-functions@sha256:"), text.count("PublishedVersions")))
    command("Architecture=x86_64 Package=image SnapStart=yes")
    given = {name: EVERYTHING[name] for name in ("Batch", "LargeModels", "Release", "ReleaseChecks", "ReleaseKey")}
    given |= {"Package": "image", "SnapStart": "yes", "Streaming": "unlimited"}
    stack, other = (Template(given | {"KeepDays": days}, operate.BUILT_STACK / "template.yaml") for days in ("7", "8"))
    for name, suffix in (("ApiFunction", "api"), ("StreamFunction", "stream"), ("BatchFunction", "batch")):
        found = stack.properties(name)
        expect(f"{name}'s name", f"kivu-{suffix}-image", found["FunctionName"])
        expect(f"{name}'s package", ("Image", True), (found["PackageType"], found["Code"]["ImageUri"].startswith(f"{ecr.host}/kivu-functions@sha256:")))
        expect(f"{name}'s snapshots", {"ApplyOn": "PublishedVersions"}, found["SnapStart"])
        # What Lambda refuses together with snapshots, and what archives have.
        expect(f"{name}'s other fields", [], [field for field in ("Runtime", "Handler", "EphemeralStorage", "FileSystemConfigs") if field in found])
        versions = [{each for each in of.resources if each.startswith(f"{name}Version")} for of in (stack, other)]
        # KeepDays is no parameter of the function with streamed responses.
        expect(f"{name}'s versions, with another parameter", (1, 1, name == "StreamFunction"), (*map(len, versions), versions[0] == versions[1]))
    expect("an archive without models", "provided.al2023", stack.properties("LargeFunction")["Runtime"])
    alias = "arn:aws:lambda:eu-west-1:000000000000:function:kivu-batch-image:live"
    expect("the functions that files reach", (alias, alias),
           (stack.properties("BatchFunctionUploads")["FunctionName"], stack.properties("LargeFiles")["DefinitionSubstitutions"]["BatchFunction"]))
    granted = json.dumps(stack.policies())
    expect("roles for the function's name", (True, False), ("function:kivu-api-image:*" in granted, '"arn:aws:lambda:eu-west-1:000000000000:function:kivu-api"' in granted))
    for other, message in (({"ProvisionedConcurrency": "1"}, "does not work with ProvisionedConcurrency"), ({"Package": "zip"}, "deploys archives, too")):
        try:
            Template(given | other, operate.BUILT_STACK / "template.yaml")
        except Refused as refused:
            expect(f"the refusal of {other}", True, message in str(refused))
        else:
            sys.exit(f"expected {other} to be refused")
    lint = subprocess.run([Path(sys.executable).parent / "cfn-lint", *operate.BUILT_STACK.rglob("template.yaml")], capture_output=True, text=True)
    expect("findings of cfn-lint", "", lint.stdout)


def main():
    os.umask(0o077)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        passwords = folder / "passwords"
        passwords.write_text(PASSWORDS)
        locked = (("REGISTRY_AUTH", "htpasswd"), ("REGISTRY_AUTH_HTPASSWD_REALM", "ecr"), ("REGISTRY_AUTH_HTPASSWD_PATH", str(passwords)))
        with DockerRegistry(folder / "open") as open_registry, DockerRegistry(folder / "ecr", *locked) as ecr:
            push_base(open_registry.host, folder)
            base, target = f"{open_registry.host}/base:al2023", registry.Registry(f"{ecr.host}/kivu-functions", "sesame")
            function = images_share_layers(base, target, folder, functions_run(base, target, folder))
            broken_registries_publish_nothing(open_registry, ecr, folder, function, base)
            large_blobs_continue(open_registry, folder)
            stacks_get_images(ecr, folder, function, base)
            bad_images_are_refused(open_registry, folder, function, base)


if __name__ == "__main__":
    main()
