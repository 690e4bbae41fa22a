"""Measures first requests to models in SeaweedFS, which are fetched, checked and loaded for them.

    TEST_KIVU=target/release/kivu TEST_ONNXRUNTIME=… TEST_BUNDLE=a small bundle  python tests/s3/bench.py
"""

import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import BUCKET, KIVU, Weed, kivu

sys.path.append(str(Path(__file__).resolve().parents[2] / "benches"))
from on_demand import copies  # noqa: E402


def first_requests(weed, folder, env, count=20):
    (folder / "many").mkdir()
    copies(Path(os.environ["TEST_BUNDLE"]), folder / "many", count)
    for bundle in (folder / "many").iterdir():
        kivu(weed.endpoint, "push", bundle, f"s3://{BUCKET}/many", env=env)
    process = subprocess.Popen(
        [KIVU, "serve", f"s3://{BUCKET}/many", "--load", "on-demand", "--listen", "127.0.0.1:0"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | env | {"AWS_ENDPOINT_URL": weed.endpoint})
    times = []
    try:
        connection = http.client.HTTPConnection(process.stdout.readline().split("http://")[1].strip(), timeout=60)
        for number in range(count):
            started = time.monotonic()
            body = json.dumps({"model": f"m{number}", "inputs": "What is deep learning?"})
            connection.request("POST", "/embed", body, {"content-type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            response.read()
            times.append((time.monotonic() - started) * 1000)
    finally:
        process.kill()
        process.wait()
    print(f"first request to a model in S3: median {statistics.median(times):.0f} ms, at most {max(times):.0f} ms")


if __name__ == "__main__":
    weed, folder = Weed(), Path(tempfile.mkdtemp(prefix="kivu-bench-"))
    try:
        first_requests(weed, folder, {"KIVU_ONNXRUNTIME": os.environ["TEST_ONNXRUNTIME"], "KIVU_HOME": str(folder / "home")})
    finally:
        weed.stop()
        shutil.rmtree(folder)
