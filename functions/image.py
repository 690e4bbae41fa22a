"""Makes a function's container image without Docker: a base, a layer for each bundle, and one for the other files.

    python functions/image.py FOLDER --architecture arm64|x86_64 [--base IMAGE] [--out ARCHIVE.tar] [--push REGISTRY/NAME]

FOLDER is what functions/package.py has packed. The archive is an OCI layout that `docker load` also takes. The same
files and the same base make the same layers and the same image, byte for byte; a bundle's layer does not depend on the
processor or the program. Needs the packages of tests/deploy/requirements.txt.
"""

import argparse
import gzip
import hashlib
import json
import re
import sys
import tarfile
import zlib
from pathlib import Path

from package import PROGRAM, ROOT, machine
from registry import CHUNK, Registry, RegistryError

BASE = "public.ecr.aws/lambda/provided:al2023"
LAYOUT = ROOT / "target/image/layout"
# Lambda's limit for an image, unpacked.
MAX_UNPACKED = 10 * 1024**3
# By the template's names: OCI's name, and the number in the header of an ELF file.
ARCHITECTURES = {"x86_64": ("amd64", 62), "arm64": ("arm64", 183)}
# Lambda's folder for the function.
TASK = "/var/task"
# One time for all files and for the image, in seconds since 1970 and as text; as in archives.
TIME, CREATED = 315532800, "1980-01-01T00:00:00Z"
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
# A base's layers by their type's last part, which differs between Docker and OCI; zstd is not among Lambda's.
LAYERS = {"gzip": f"{LAYER}+gzip", "tar": LAYER}


class ImageError(Exception):
    """An image that cannot be made."""


class Hashed:
    """A file that hashes and counts what is written to it."""

    def __init__(self, file):
        self.file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, data):
        self.hash.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self):
        self.file.flush()

    @property
    def digest(self):
        return f"sha256:{self.hash.hexdigest()}"


class Image:
    """An image in a layout: a folder with its blobs, which keeps the base's between images."""

    def __init__(self, layout, name, architecture):
        self.layout, self.name, self.architecture = layout, name, architecture
        self.blobs = layout / "blobs/sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        # Descriptors and digests of the unpacked layers; the bytes of the base's layers, packed, and of all, unpacked.
        self.layers, self.unpacked_digests, self.base_size, self.unpacked = [], [], 0, 0

    def add_base(self, base):
        """Downloads the base's layers; returns its configuration."""
        repository, reference = parsed(base)
        registry, wanted = Registry(repository), ARCHITECTURES[self.architecture][0]
        manifest = registry.manifest(reference)
        if "manifests" in manifest:
            platforms = {each["platform"]["architecture"]: each["digest"] for each in manifest["manifests"] if each.get("platform", {}).get("os") == "linux"}
            if wanted not in platforms:
                raise ImageError(f"the base `{base}` has no image for {wanted}, but for {', '.join(sorted(platforms)) or 'no architecture'}; choose another BASE")
            manifest = registry.manifest(platforms[wanted])
        config = json.loads(self._fetched(registry, manifest["config"]["digest"]).read_bytes())
        if (found := (config.get("os"), config.get("architecture"))) != ("linux", wanted):
            raise ImageError(f"the base `{base}` is for {'/'.join(map(str, found))}, but the function for linux/{wanted}; choose another BASE")
        for layer in manifest["layers"]:
            found = self._fetched(registry, layer["digest"])
            if found.stat().st_size != layer["size"]:
                raise ImageError(f"expected a layer of {layer['size']} bytes in the base `{base}`, but found {found.stat().st_size}")
            kind = layer["mediaType"].replace("+", ".").rpartition(".")[2]
            if kind not in LAYERS:
                raise ImageError(f"the base `{base}` has a layer of type `{layer['mediaType']}`, which Lambda does not read; choose another BASE")
            self._add(layer["digest"], layer["size"], LAYERS[kind], unpacked_size(found, kind))
            self.base_size += layer["size"]
        self.unpacked_digests += config["rootfs"]["diff_ids"]
        return config

    def _fetched(self, registry, digest):
        path = self.blob(digest)
        if not path.exists():
            registry.download(digest, path)
        return path

    def add_layer(self, files):
        """Adds a layer with files, by their paths below the function's folder."""
        part = self.blobs / "layer.part"
        with part.open("wb") as file:
            packed = Hashed(file)
            with gzip.GzipFile("", "wb", 6, packed, mtime=0) as compressed:
                unpacked = Hashed(compressed)
                with tarfile.open(fileobj=unpacked, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                    write_entries(archive, TASK.strip("/"), files)
        part.rename(self.blob(packed.digest))
        self._add(packed.digest, packed.size, LAYERS["gzip"], unpacked.size)
        self.unpacked_digests.append(unpacked.digest)

    def _add(self, digest, size, kind, unpacked):
        self.layers.append({"mediaType": kind, "digest": digest, "size": size})
        self.unpacked += unpacked
        if self.unpacked > MAX_UNPACKED:
            raise ImageError(f"expected an image of at most {MAX_UNPACKED} bytes unpacked, Lambda's limit, but found more than {self.unpacked}; pack fewer models")

    def finish(self, base):
        """Writes configuration, manifest and index, and removes blobs of other images."""
        inherited = {name: value for name, value in (base.get("config") or {}).items() if name != "Cmd"}
        variables = [each for each in inherited.get("Env") or [] if not each.startswith("LAMBDA_TASK_ROOT=")]
        config = {name: base[name] for name in ("architecture", "os", "variant") if name in base} | {
            "created": CREATED,
            "config": inherited | {"Env": [*variables, f"LAMBDA_TASK_ROOT={TASK}"], "WorkingDir": TASK, "Entrypoint": [f"{TASK}/{PROGRAM}"]},
            "rootfs": {"type": "layers", "diff_ids": self.unpacked_digests},
            "history": [{"created": CREATED, "created_by": "functions/image.py"}] * len(self.layers),
        }
        config = self._document(config, CONFIG)
        manifest = self._document({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": self.layers}, MANIFEST)
        # The name that `docker load` gives the image.
        tag = f"{self.name}:{self.architecture}"
        named = {"io.containerd.image.name": f"docker.io/library/{tag}", "org.opencontainers.image.ref.name": self.architecture}
        write(self.layout / "oci-layout", {"imageLayoutVersion": "1.0.0"})
        write(self.layout / "index.json", {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest | {"annotations": named}]})
        # For versions of Docker before 25.
        paths = [f"blobs/sha256/{each['digest'].removeprefix('sha256:')}" for each in (config, *self.layers)]
        write(self.layout / "manifest.json", [{"Config": paths[0], "RepoTags": [tag], "Layers": paths[1:]}])
        self.config, self.manifest = config["digest"], manifest["digest"]
        kept = {each["digest"].removeprefix("sha256:") for each in (config, manifest, *self.layers)}
        for blob in self.blobs.iterdir():
            if blob.name not in kept:
                blob.unlink()

    def _document(self, value, kind):
        content = json.dumps(value, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blob(digest).write_bytes(content)
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def blob(self, digest):
        """A blob's path. A registry may state any text as a digest."""
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            raise ImageError(f"expected the digest of a blob, but found {digest!r}")
        return self.blobs / digest.removeprefix("sha256:")

    def save(self, archive):
        """Writes the layout as an archive, for `docker load` and other tools."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as out:
            write_entries(out, "", {str(file.relative_to(self.layout)): file for file in self.layout.rglob("*") if file.is_file()})

    def push(self, registry):
        """Sends the image to a registry, its manifest last; returns the image's name with its digest."""
        sent = [digest for digest in (*(layer["digest"] for layer in self.layers), self.config) if registry.upload(digest, self.blob(digest))]
        tag = f"{self.name}-{self.architecture}-{self.manifest.removeprefix('sha256:')[:12]}"
        registry.put_manifest(self.manifest, tag, MANIFEST, self.blob(self.manifest))
        size = sum(self.blob(digest).stat().st_size for digest in sent)
        print(f"{registry.repository}: sent {len(sent)} of {len(self.layers) + 1} blobs, {size / 1e6:.1f} MB", file=sys.stderr)
        return f"{registry.repository}@{self.manifest}"


def parsed(image):
    """An image's repository, and its tag or digest."""
    name, separator, digest = image.partition("@")
    if separator:
        return name, digest
    before, separator, tag = name.rpartition(":")
    return (before, tag) if separator and "/" not in tag else (name, "latest")


def unpacked_size(file, kind):
    """The bytes of a base's layer, unpacked, or some number above Lambda's limit."""
    if kind == "tar":
        return file.stat().st_size
    size = 0
    with gzip.open(file) as unpacked:
        try:
            while size <= MAX_UNPACKED and (chunk := unpacked.read(CHUNK)):
                size += len(chunk)
        except (OSError, EOFError, zlib.error) as error:
            raise ImageError(f"a layer of the base cannot be unpacked: {error}") from error
    return size


def write_entries(archive, below, files):
    """Adds files with their folders, in order, with the same owner, time and modes everywhere."""
    folders = {str(parent) for name in files for parent in Path(name).parents if parent.name}
    for name in sorted(folders | files.keys()):
        entry = tarfile.TarInfo(f"{below}/{name}".lstrip("/"))
        entry.mtime = TIME
        if name in folders:
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        else:
            entry.size, entry.mode = files[name].stat().st_size, 0o755 if name == PROGRAM else 0o644
            with files[name].open("rb") as file:
                archive.addfile(entry, file)


def write(path, value):
    path.write_text(json.dumps(value, sort_keys=True))


def make(folder, name, architecture, base, layout):
    """The image of a packed function, in a layout. Its bundles come before its program, which changes more often."""
    found, expected = machine(folder / PROGRAM), ARCHITECTURES[architecture][1]
    if found != expected:
        raise ImageError(f"expected {folder / PROGRAM} for {architecture}, but found one for another architecture; set ARCHITECTURE")
    layers = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        path = file.relative_to(folder)
        layers.setdefault(path.parts[:2] if path.parts[0] == "models" else (), {})[str(path)] = file
    image = Image(layout, f"kivu-{name}", architecture)
    unpacked = sum(file.stat().st_size for files in layers.values() for file in files.values())
    if unpacked > MAX_UNPACKED:
        raise ImageError(f"expected an image of at most {MAX_UNPACKED} bytes unpacked, Lambda's limit, but found {unpacked} without the base; pack fewer models")
    config = image.add_base(base)
    for part in sorted(layers, reverse=True):
        image.add_layer(layers[part])
    image.finish(config)
    own = sum(layer["size"] for layer in image.layers) - image.base_size
    print(f"{image.name}: {own / 1e6:.1f} MB and the base's {image.base_size / 1e6:.1f} MB packed, {image.unpacked / 1e6:.1f} MB unpacked", file=sys.stderr)
    return image


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a function packed by functions/package.py")
    parser.add_argument("--architecture", choices=ARCHITECTURES, required=True)
    parser.add_argument("--base", default=BASE, help="REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:...")
    parser.add_argument("--out", type=Path, help="an archive to write")
    parser.add_argument("--push", metavar="REGISTRY/NAME", help="a repository that takes the image without credentials")
    parser.add_argument("--layout", type=Path, default=LAYOUT, help="a folder for the image's blobs, which keeps the base's")
    arguments = parser.parse_args()
    try:
        image = make(arguments.folder, arguments.folder.resolve().name, arguments.architecture, arguments.base, arguments.layout)
        if arguments.out:
            image.save(arguments.out)
        print(image.push(Registry(arguments.push)) if arguments.push else image.manifest)
    except (ImageError, RegistryError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
