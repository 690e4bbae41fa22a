"""Pushing, pulling and serving bundles with a real S3 server, including failures.

    TEST_KIVU=… TEST_BATCH=… TEST_BUNDLE=… TEST_TRANSLATOR=… python tests/s3/test_staging.py
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

import harness
from harness import BUCKET, KIVU, Faults, Weed, kivu, wait_for

BUNDLE = Path(os.environ["TEST_BUNDLE"])
TRANSLATOR = Path(os.environ["TEST_TRANSLATOR"])
NAME = BUNDLE.name
PREFIX = f"s3://{BUCKET}/models"


class Served:
    """`kivu serve` of a bundle."""

    def __init__(self, endpoint, *models, env=()):
        environment = os.environ | {"AWS_ENDPOINT_URL": endpoint} | dict(env)
        self.process = subprocess.Popen(
            [KIVU, "serve", *map(str, models), "--listen", "127.0.0.1:0"], env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )

    def address(self):
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise AssertionError(self.process.stderr.read())
        return line.split("http://")[1].strip()

    def embed(self, text):
        return self.ask("/embed", {"inputs": text})

    def ask(self, path, body):
        request = urllib.request.Request(
            f"http://{self.address()}{path}", json.dumps(body).encode(), {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self):
        self.process.kill()
        self.process.communicate()


class Staging(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.weed = Weed()
        cls.folder = Path(tempfile.mkdtemp(prefix="kivu-staging-"))
        cls.home = {"KIVU_HOME": str(cls.folder / "home"), "KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"]}
        cls.digest = cls.push().stdout.split(f"{NAME}/")[1].split()[0]

    @classmethod
    def tearDownClass(cls):
        cls.weed.stop()
        shutil.rmtree(cls.folder)

    @classmethod
    def push(cls, bundle=BUNDLE, prefix=PREFIX, endpoint=None, **more):
        return kivu(endpoint or cls.weed.endpoint, "push", bundle, prefix, env=cls.home, **more)

    def pull(self, url, out, endpoint=None, **more):
        return kivu(endpoint or self.weed.endpoint, "pull", url, "--out", out, env=self.home, **more)

    def serve(self, url, text="a text", endpoint=None, env=()):
        return self.ask(url, "/embed", {"inputs": text}, endpoint, env)

    def ask(self, url, path, body, endpoint=None, env=()):
        served = Served(endpoint or self.weed.endpoint, url, env=self.home | dict(env))
        try:
            return served.ask(path, body)
        finally:
            served.stop()

    def assert_same(self, folder):
        for file in BUNDLE.iterdir():
            self.assertEqual((folder / file.name).read_bytes(), file.read_bytes(), file.name)

    def test_the_layout_of_a_pushed_bundle(self):
        files = sorted(file.name for file in BUNDLE.iterdir())
        place = f"models/{NAME}/"
        self.assertEqual(self.weed.keys(place), [f"{place}{self.digest}/{file}" for file in files] + [f"{place}latest"])
        self.assertEqual(self.weed.get(f"{place}latest").decode(), self.digest)
        before = self.weed.s3.head_object(Bucket=BUCKET, Key=f"{place}{self.digest}/manifest.toml")["LastModified"]
        self.assertIn("known", self.push().stdout)
        after = self.weed.s3.head_object(Bucket=BUCKET, Key=f"{place}{self.digest}/manifest.toml")["LastModified"]
        self.assertEqual(before, after)

    def test_a_bundle_comes_back_as_it_went(self):
        out = self.folder / "back"
        self.assertIn("fetched", self.pull(f"{PREFIX}/{NAME}", out).stdout)
        self.assert_same(out)
        self.assertIn("known", self.pull(f"{PREFIX}/{NAME}/{self.digest}", out).stdout)
        (out / "tokenizer.json").write_bytes(b"{}")
        self.assertIn("fetched", self.pull(f"{PREFIX}/{NAME}", out).stdout)
        self.assert_same(out)
        other = self.folder / "other"
        other.mkdir()
        (other / "mine.txt").write_text("mine")
        self.assertIn("but found `mine.txt`", self.pull(f"{PREFIX}/{NAME}", other, check=False).stderr)
        self.assertEqual((other / "mine.txt").read_text(), "mine")

    def test_it_is_served_from_s3_as_from_its_folder(self):
        expected = self.serve(BUNDLE)
        self.assertEqual(self.serve(f"{PREFIX}/{NAME}"), expected)
        self.assertEqual(self.serve(f"{PREFIX}/{NAME}/{self.digest}"), expected)

    def test_a_translator_is_served_from_s3_with_nothing_on_disk(self):
        self.push(bundle=TRANSLATOR)
        body = {"inputs": "a text", "src_lang": "en", "tgt_lang": "fr", "generate_parameters": {"num_beams": 3, "max_new_tokens": 12}}
        expected = self.ask(TRANSLATOR, "/translate", body)
        temporary = self.folder / "temporary"
        temporary.mkdir()
        found = self.ask(f"{PREFIX}/{TRANSLATOR.name}", "/translate", body, env={"TMPDIR": str(temporary)})
        self.assertEqual(found["translations"], expected["translations"])
        self.assertEqual(list(temporary.iterdir()), [])

    def test_a_cache_serves_many_processes(self):
        cache = self.folder / "cache"
        url, expected = f"{PREFIX}/{NAME}", self.serve(BUNDLE)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda _: self.serve(url, env={"KIVU_CACHE": str(cache)}), range(4))
            self.assertEqual(list(answers), [expected] * 4)
        self.assertEqual([folder.name for folder in cache.iterdir()], [self.digest])
        self.assert_same(cache / self.digest)

    def test_missing_objects_are_reported(self):
        missing = self.pull(f"{PREFIX}/nothing", self.folder / "x", check=False)
        self.assertIn(f"expected a bundle at `{PREFIX}/nothing`, but found no `latest`", missing.stderr)
        digest = "0" * 64
        missing = self.pull(f"{PREFIX}/{NAME}/{digest}", self.folder / "x", check=False)
        self.assertIn("but found no `manifest.toml`", missing.stderr)
        self.weed.put("models/odd/latest", b"hello")
        self.assertIn("expected a digest in", self.pull(f"{PREFIX}/odd", self.folder / "x", check=False).stderr)
        self.weed.put(f"models/odd/{digest}/manifest.toml", (BUNDLE / "manifest.toml").read_bytes())
        wrong = self.pull(f"{PREFIX}/odd/{digest}", self.folder / "x", check=False)
        self.assertIn("to have the SHA-256 in its URL", wrong.stderr)

    def test_two_pushers_end_in_one_bundle(self):
        prefix = f"s3://{BUCKET}/race"
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            done = list(pool.map(lambda place: kivu(
                self.weed.endpoint, "push", BUNDLE, prefix,
                env=self.home | {"KIVU_HOME": str(self.folder / f"home-{place}")},
            ), range(3)))
        self.assertEqual(len(done), 3)
        out = self.folder / "race"
        self.pull(f"{prefix}/{NAME}", out)
        self.assert_same(out)
        # A change of `latest` by another process is not overwritten.
        faults = Faults(self.weed.endpoint)
        try:
            def move(request, _):
                if request.command == "PUT" and request.path.endswith("/manifest.toml?x-id=PutObject"):
                    self.weed.put(f"meddled/{NAME}/latest", b"1" * 64)
            faults.fault = move
            refused = self.push(prefix=f"s3://{BUCKET}/meddled", endpoint=faults.endpoint, check=False)
        finally:
            faults.stop()
        self.assertIn("another process changed", refused.stderr)
        self.assertEqual(self.weed.get(f"meddled/{NAME}/latest"), b"1" * 64)

    def test_objects_that_no_push_wrote_are_left_alone(self):
        refused = {
            f"occupied/{NAME}/latest": "expected a digest in",
            f"taken/{NAME}/{self.digest}/manifest.toml": "is not the bundle's manifest",
        }
        for key, message in refused.items():
            self.weed.put(key, b"mine")
            refusal = self.push(prefix=f"s3://{BUCKET}/{key.split('/')[0]}", check=False)
            self.assertEqual(refusal.returncode, 1)
            self.assertIn(message, refusal.stderr)
            self.assertEqual(self.weed.get(key), b"mine")
            self.assertEqual(self.weed.keys(f"{key.split('/')[0]}/"), [key])
        # Only a missing file is uploaded again.
        prefix, place = f"s3://{BUCKET}/gone", f"gone/{NAME}/{self.digest}/weights.bin"
        self.push(prefix=prefix)
        self.weed.s3.delete_object(Bucket=BUCKET, Key=place)
        self.assertIn("sent", self.push(prefix=prefix).stdout)
        self.assertIn(place, self.weed.keys("gone/"))
        self.assertIn("known", self.push(prefix=prefix).stdout)

    def test_a_damaged_bundle_is_pushed_again(self):
        prefix = f"s3://{BUCKET}/damaged"
        self.push(prefix=prefix)
        place = f"damaged/{NAME}/{self.digest}/weights.bin"
        metadata = self.weed.s3.head_object(Bucket=BUCKET, Key=place)["Metadata"]
        damaged = bytearray(self.weed.get(place))
        damaged[len(damaged) // 2] ^= 1
        self.weed.put(place, bytes(damaged), Metadata=metadata)
        refused = self.pull(f"{prefix}/{NAME}", self.folder / "damaged", check=False)
        self.assertIn("the bundle is damaged", refused.stderr)
        self.assertIn("push it again", refused.stderr)
        self.assertIn("sent", self.push(prefix=prefix).stdout)
        self.pull(f"{prefix}/{NAME}", self.folder / "damaged")
        self.assert_same(self.folder / "damaged")
        self.assertIn("known", self.push(prefix=prefix).stdout)

    def test_a_damaged_cache_is_fetched_again(self):
        cache = self.folder / "damaged-cache"
        url, expected = f"{PREFIX}/{NAME}", self.serve(BUNDLE)
        env = {"KIVU_CACHE": str(cache)}
        self.assertEqual(self.serve(url, env=env), expected)
        # `tokenizer.json` is not read, since it was compiled.
        for file in sorted({file.name for file in BUNDLE.iterdir()} - {"tokenizer.json"}):
            path = cache / self.digest / file
            damaged = bytearray(path.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            path.write_bytes(bytes(damaged))
            self.assertEqual(self.serve(url, env=env), expected, file)
            self.assert_same(cache / self.digest)
        (cache / self.digest / "weights.bin").unlink()
        self.assertEqual(self.serve(url, env=env), expected)
        self.assertEqual([folder.name for folder in cache.iterdir()], [self.digest])

    def test_a_damaged_part_of_an_interrupted_pull_is_fetched_again(self):
        out = self.folder / "interrupted"
        partial = self.folder / f"interrupted.partial-{self.digest[:12]}"
        partial.mkdir()
        (partial / "weights.bin").write_bytes(b"x" * 1000)
        self.pull(f"{PREFIX}/{NAME}", out)
        self.assert_same(out)

    def test_pushers_with_one_home_end_in_one_bundle(self):
        prefix = f"s3://{BUCKET}/together"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self.push(prefix=prefix), range(4)))
        self.pull(f"{prefix}/{NAME}", self.folder / "together")
        self.assert_same(self.folder / "together")

    def test_an_interrupted_push_resumes(self):
        faults = Faults(self.weed.endpoint)
        prefix = f"s3://{BUCKET}/resumed"
        parts = []

        def stop(request, _):
            if request.command == "PUT" and "partNumber=" in request.path:
                parts.append(request.path)
                if len(parts) == 3:
                    process.kill()
        try:
            faults.fault = stop
            environment = os.environ | {"AWS_ENDPOINT_URL": faults.endpoint} | self.home
            process = subprocess.Popen([KIVU, "push", BUNDLE, prefix], env=environment, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            process.wait()
            self.assertFalse(self.weed.exists(f"resumed/{NAME}/latest"))
            noted = [json.loads(note.read_text().split("\n", 1)[1]) for note in (self.folder / "home" / "pushes").glob("*.json")]
            known = {(note["upload"]["key"], part["number"]) for note in noted for part in note["parts"]}
            again = []
            faults.fault = lambda request, _: again.append(request.path) if "partNumber=" in request.path else None
            self.push(prefix=prefix, endpoint=faults.endpoint)
        finally:
            faults.stop()
        for key, number in known:
            self.assertFalse([path for path in again if key in path and f"partNumber={number}&" in path + "&"])
        self.pull(f"{prefix}/{NAME}", self.folder / "resumed")
        self.assert_same(self.folder / "resumed")

    def test_broken_connections_and_throttling_are_retried(self):
        for fault in ("cut", "slow down"):
            faults = Faults(self.weed.endpoint)
            try:
                faults.fault = lambda request, seen, fault=fault: fault if seen % 3 == 2 else None
                self.assertEqual(self.serve(f"{PREFIX}/{NAME}", endpoint=faults.endpoint), self.serve(BUNDLE))
                out = self.folder / f"through-{fault.replace(' ', '-')}"
                self.pull(f"{PREFIX}/{NAME}", out, endpoint=faults.endpoint)
                self.assert_same(out)
                self.push(prefix=f"s3://{BUCKET}/{out.name}", endpoint=faults.endpoint)
            finally:
                faults.stop()

    def test_a_wrong_byte_is_detected(self):
        faults = Faults(self.weed.endpoint)
        try:
            faults.fault = lambda request, _: "flip" if request.command == "GET" and "weights.bin" in request.path else None
            served = Served(faults.endpoint, f"{PREFIX}/{NAME}", env=self.home)
            error = served.process.communicate(timeout=60)[1]
            self.assertIn("to have the BLAKE3", error)
            pulled = self.pull(f"{PREFIX}/{NAME}", self.folder / "wrong", endpoint=faults.endpoint, check=False)
            self.assertIn("to have the BLAKE3", pulled.stderr)
            self.assertFalse((self.folder / "wrong").exists())
        finally:
            faults.stop()

    def test_a_replaced_object_is_detected(self):
        place = f"models/replaced-{NAME}/{self.digest}"
        for file in BUNDLE.iterdir():
            self.weed.put(f"{place}/{file.name}", file.read_bytes())
        self.weed.put(f"{place}/weights.bin", b"short")
        served = Served(self.weed.endpoint, f"s3://{BUCKET}/{place}", env=self.home)
        error = served.process.communicate(timeout=90)[1]
        self.assertIn("weights.bin", error)
        self.assertIn("to stay as it was", error)
        # A manifest that is replaced after it was verified, and before it is stored.
        self.push(prefix=f"s3://{BUCKET}/swapped")
        key, reads, faults = f"swapped/{NAME}/{self.digest}/manifest.toml", [], Faults(self.weed.endpoint)
        try:
            def swap(request, _):
                if request.command == "GET" and key in request.path:
                    reads.append(request.path)
                    if len(reads) == 2:
                        self.weed.put(key, (BUNDLE / "manifest.toml").read_bytes() + b"# replaced\n")
            faults.fault = swap
            pulled = self.pull(f"s3://{BUCKET}/swapped/{NAME}", self.folder / "swapped", endpoint=faults.endpoint, check=False)
        finally:
            faults.stop()
        self.assertEqual((pulled.returncode, len(reads)), (1, 2))
        self.assertIn("to stay as it was during the download", pulled.stderr)
        self.assertFalse((self.folder / "swapped").exists())

    def test_a_server_that_is_killed_and_comes_back(self):
        faults = Faults(self.weed.endpoint)
        killed = threading.Event()

        def kill(request, _):
            if request.command == "GET" and "weights.bin" in request.path and not killed.is_set():
                killed.set()
                self.weed.kill()
                threading.Thread(target=lambda: (time.sleep(1), self.weed.start()), daemon=True).start()
        try:
            faults.fault = None
            expected = self.serve(BUNDLE)
            served = Served(self.weed.endpoint, f"{PREFIX}/{NAME}", env=self.home)
            self.weed.kill()
            time.sleep(0.5)
            self.weed.start()
            self.assertEqual(served.embed("a text"), expected)
            served.stop()
        finally:
            faults.stop()
            wait_for("weed", lambda: self.weed.s3.list_buckets())


if __name__ == "__main__":
    unittest.main(verbosity=2)
