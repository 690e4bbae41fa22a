"""The parts of the OCI distribution protocol that copy an image from one registry to another.

    base = Registry("public.ecr.aws/lambda/provided")
    manifest = base.manifest("al2023")

Blobs and manifests are verified by their digests. A blob that the registry has is not sent, so a push that broke off
continues with the first missing blob when it is repeated. Large blobs are sent in parts: after a break, an upload
continues where the registry's copy ends, if the registry keeps it.
"""

import hashlib
import ipaddress
import json
import os
import re
import time
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import parse_dict_header
from urllib3.util import parse_url

# Seconds to connect, and between two pieces of a response.
TIMEOUT_S = (10, 300)
TRIES = 3
CHUNK = 1 << 20
# Bytes of a blob in one request; ECR takes at most 20 MiB, and at least 5.
PART = 16 << 20
BLOB = {"Content-Type": "application/octet-stream"}
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class RegistryError(Exception):
    """What a registry refused, or that it did not answer."""


class Refused(RegistryError):
    """A request that the registry does not take."""


class Interrupted(RegistryError):
    """A failure that another try may not have."""


class Registry:
    """A repository in a registry, `HOST/NAME`, with the password for the user AWS, or without credentials."""

    def __init__(self, repository, password=None):
        self.repository = repository
        host, _, name = repository.partition("/")
        if not name:
            raise RegistryError(f"expected REGISTRY/NAME, but found `{repository}`")
        self.url = f"{'http' if is_loopback(host) else 'https'}://{host}/v2/{name}/"
        self.session = requests.Session()
        # Blobs arrive as they are stored.
        self.session.headers["Accept-Encoding"] = "identity"
        self.session.auth = self.credentials = ("AWS", password) if password else None
        self.takes_parts = True

    def manifest(self, reference):
        """A manifest or an index, by a tag or a digest."""
        content = self._try(lambda: self._request("GET", f"manifests/{reference}", headers={"Accept": ", ".join(MANIFESTS)}).content)
        # Tags have no colon.
        if ":" in reference:
            self._verify(reference, hashlib.sha256(content))
        return json.loads(content)

    def download(self, digest, path):
        """Writes a blob to a file, which appears once it is complete."""
        part = path.with_name(f"{path.name}.part")

        def receive():
            found = hashlib.sha256()
            with self._request("GET", f"blobs/{digest}", stream=True) as response, part.open("wb") as file:
                for chunk in response.iter_content(CHUNK):
                    found.update(chunk)
                    file.write(chunk)
            self._verify(digest, found)

        self._try(receive)
        part.rename(path)

    def upload(self, digest, path):
        """Sends a blob unless the registry has it; whether it was sent."""

        def send():
            if self._request("HEAD", f"blobs/{digest}", missing=True).ok:
                return False
            with path.open("rb") as file:
                if self.takes_parts and path.stat().st_size > PART:
                    try:
                        self._finish(self._send_parts(file), digest)
                        return True
                    except Refused:
                        self.takes_parts = False
                        file.seek(0)
                self._finish(self._begin(), digest, file)
            return True

        return self._try(send)

    def _begin(self):
        return self._request("POST", "blobs/uploads/").headers["Location"]

    def _finish(self, location, digest, content=None):
        self._request("PUT", location, params={"digest": digest}, data=content, headers=BLOB)

    def _send_parts(self, file):
        """Sends a file in parts; returns the upload's location. A part that broke off is sent again from where the
        registry's copy ends: some keep the part's beginning, and ECR states too little.
        """
        location, size, sent, breaks = self._begin(), os.fstat(file.fileno()).st_size, 0, 0
        while sent < size:
            file.seek(sent)
            part = file.read(PART)
            headers = BLOB | {"Content-Range": f"{sent}-{sent + len(part) - 1}"}
            try:
                found = self._request("PATCH", location, data=part, headers=headers).headers
                sent, breaks = sent + len(part), 0
            except Interrupted:
                breaks += 1
                if breaks == TRIES:
                    raise
                time.sleep(breaks)
                found = self._try(lambda: self._state(location))
                sent = max(sent, end(found))
            except Refused as error:
                if breaks:
                    raise Interrupted(str(error)) from error
                raise
            location = found.get("Location", location)
        return location

    def _state(self, location):
        """The headers with an upload's state; none if the registry does not tell or know it."""
        try:
            return self._request("GET", location).headers
        except Refused:
            return {}

    def put_manifest(self, digest, tag, media_type, path):
        """Publishes an image, whose blobs the registry must have."""

        def put():
            if not self._request("HEAD", f"manifests/{digest}", missing=True, headers={"Accept": media_type}).ok:
                self._request("PUT", f"manifests/{tag}", data=path.read_bytes(), headers={"Content-Type": media_type})

        self._try(put)

    def _try(self, action):
        for wait_s in range(1, TRIES):
            try:
                return action()
            except Interrupted:
                time.sleep(wait_s)
        return action()

    def _request(self, method, path, missing=False, **options):
        """A response of success, or a 404 where `missing` permits that."""
        url = urljoin(self.url, path)
        if urlsplit(url)[:2] != urlsplit(self.url)[:2]:
            raise RegistryError(f"{self.repository}: the registry sends uploads to `{'://'.join(urlsplit(url)[:2])}`, which must not get its credentials")
        try:
            response = self.session.request(method, url, timeout=TIMEOUT_S, **options)
            challenge = response.headers.get("WWW-Authenticate", "")
            if response.status_code == 401 and challenge.startswith("Bearer "):
                self._authenticate(parse_dict_header(challenge.removeprefix("Bearer ")))
                response = self.session.request(method, url, timeout=TIMEOUT_S, **options)
        except requests.RequestException as error:
            raise Interrupted(f"{self.repository}: the connection failed: {error}") from error
        if response.ok or (missing and response.status_code == 404):
            return response
        kind = Interrupted if response.status_code == 429 or response.status_code >= 500 else Refused
        raise kind(f"{self.repository}: the registry refused {method} {url.partition('?')[0]}: {response.status_code} {reason(response)}")

    def _authenticate(self, challenge):
        """Gets a token, anonymously without a password. Public registries require one for reading, too."""
        realm = urlsplit(challenge.get("realm", ""))
        if realm.scheme != "https" and not is_loopback(realm.netloc):
            raise RegistryError(f"{self.repository}: the registry wants credentials at `{realm.scheme}://{realm.netloc}`, without TLS")
        asked = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        found = requests.get(challenge["realm"], params=asked, auth=self.credentials, timeout=TIMEOUT_S)
        if not found.ok:
            raise RegistryError(f"{self.repository}: the registry gave no token: {found.status_code} {reason(found)}")
        self.session.auth = None
        token = found.json()
        self.session.headers["Authorization"] = f"Bearer {token.get('token') or token['access_token']}"

    def _verify(self, digest, found):
        if digest != f"sha256:{found.hexdigest()}":
            raise Interrupted(f"{self.repository}: expected {digest}, but found sha256:{found.hexdigest()}")


def end(headers):
    """How many bytes of an upload a registry has, by the last one's place; `0-0` is an empty upload."""
    last = re.fullmatch(r"(?:bytes=)?0-(\d+)", headers.get("Range", ""))
    return int(last[1]) + 1 if last and int(last[1]) else 0


def is_loopback(host):
    """Whether a registry is on this machine, and so needs no TLS: by the host that a request goes to, also after an `@`."""
    try:
        name = parse_url(f"//{host}").host or ""
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def reason(response):
    """The message in a registry's error, or the status in words."""
    try:
        error = response.json()["errors"][0]
        return f"{error['code']}: {error['message']}"
    except (ValueError, LookupError, TypeError):
        return response.reason
