"""A hundred models in S3 behind one function and one server, which load them on demand.

    TEST_API=… TEST_KIVU=… TEST_BUNDLE=… python tests/s3/test_on_demand.py
"""

import base64
import concurrent.futures
import hashlib
import json
import os
import random
import subprocess
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from harness import BUCKET, HOST, KIVU, Function, Weed, wait_for

API = os.environ["TEST_API"]
BUNDLE = Path(os.environ["TEST_BUNDLE"])
FOLDER = Path(__file__).resolve().parents[2] / "functions/api"
COUNT = 100
ENV = {
    "KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_AUTH__MODE": "none", "KIVU_LOAD": "on-demand",
    "KIVU_MAX_MEMORY": "100MB",
}


def event(name):
    """A request of an HTTP API."""
    body = json.dumps({"model": name, "input": "a text"}).encode()
    path = "/v1/embeddings"
    return {
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
        "headers": {"content-type": "application/json", "host": "a.execute-api.eu-west-1.amazonaws.com"},
        "requestContext": {
            "accountId": "1", "apiId": "a", "domainName": "a", "domainPrefix": "a", "requestId": "r",
            "routeKey": "$default", "stage": "$default",
            "http": {"method": "POST", "path": path, "protocol": "HTTP/1.1", "sourceIp": HOST, "userAgent": "test"},
            "time": "25/Nov/2024:06:57:15 +0000", "timeEpoch": 1732517835204,
        },
        "body": base64.b64encode(body).decode(), "isBase64Encoded": True,
    }


def manifest(name, note=""):
    """The bundle's manifest with another name, and with `note` in its origin."""
    lines = [line for line in (BUNDLE / "manifest.toml").read_text().splitlines() if not line.startswith(("#", "aliases"))]
    place = next(place for place, line in enumerate(lines) if line.startswith("name = "))
    lines[place] = f'name = "{name}"'
    origin = next(place for place, line in enumerate(lines) if line.startswith("from = "))
    lines[origin] = f'from = "{note}"'
    return "\n".join(lines) + "\n"


class OnDemand(unittest.TestCase):
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(cls.push, (f"m{number}" for number in range(COUNT))))

    @classmethod
    def tearDownClass(cls):
        cls.weed.stop()

    @classmethod
    def push(cls, name, note=""):
        """Pushes a bundle, as `kivu push` does; returns its digest."""
        text = manifest(name, note).encode()
        digest = hashlib.sha256(text).hexdigest()
        for file in BUNDLE.iterdir():
            contents = text if file.name == "manifest.toml" else file.read_bytes()
            cls.weed.put(f"many/{name}/{digest}/{file.name}", contents)
        cls.weed.put(f"many/{name}/latest", digest.encode())
        return digest

    def test_a_function_answers_from_any_of_them(self):
        env = ENV | {"AWS_LAMBDA_FUNCTION_NAME": "api"}
        function = Function(self.weed.endpoint, [f"s3://{BUCKET}/many"], env, API, FOLDER)
        self.addCleanup(function.stop)
        names = [f"m{number}" for number in range(COUNT)]
        random.Random(1).shuffle(names)
        vectors = set()
        for name in [*names, "m1", "missing"]:
            answer = function.call(event(name), 30)
            body = json.loads(answer["body"])
            if name == "missing":
                self.assertEqual((answer["statusCode"], body["error"]["code"]), (404, "model_not_found"))
                continue
            self.assertEqual((answer["statusCode"], body.get("model")), (200, name), body)
            vectors.add(json.dumps(body["data"][0]["embedding"]))
        self.assertEqual(len(vectors), 1, "all are the same model")

    def test_a_server_sees_new_changed_and_removed_bundles(self):
        process = subprocess.Popen(
            [KIVU, "serve", f"s3://{BUCKET}/many", "--listen", "127.0.0.1:0"],
            env=os.environ | ENV | {"AWS_ENDPOINT_URL": self.weed.endpoint}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        line = process.stdout.readline()
        self.assertIn(f"serving {COUNT} models on demand, within 100 MB", line)
        url = f"http://{line.split('http://')[1].strip()}"

        def status(name):
            body = json.dumps({"model": name, "input": "a text"}).encode()
            request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)["model"] == name and answer.status
            except urllib.error.HTTPError as error:
                return error.code

        def digests():
            with urllib.request.urlopen(f"{url}/api/tags", timeout=60) as answer:
                return {model["name"]: model["digest"] for model in json.load(answer)["models"]}

        self.assertEqual((status("m1"), status("m2")), (200, 200))
        before = digests()
        self.assertEqual(len(before), COUNT)
        changed, new = self.push("m1", "changed"), self.push("new")
        self.weed.s3.delete_object(Bucket=BUCKET, Key="many/m2/latest")
        # A name that is not known is looked for at once, and all other changes are seen then.
        wait_for("the new model", lambda: status("new") == 200)
        after = digests()
        self.assertEqual((after["m1"], after["new"]), (changed, new))
        self.assertNotEqual(before["m1"], changed)
        self.assertEqual((status("m1"), status("m2"), status("m3")), (200, 404, 200))
        # Other tests have all models.
        self.weed.put("many/m2/latest", before["m2"].encode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
