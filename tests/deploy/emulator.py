"""Starts ministack, which stands in for AWS, with IAM enforced, on a free port of this machine.

    with Emulator(log) as emulator:
        s3 = emulator.client("s3")

Run as a program it is ministack itself.
"""

import os
import runpy
import socket
import socketserver
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REGION = "eu-west-1"
START_S = 30
PATCHES = Path(__file__).resolve().parents[3] / "shared/tools/ms_patched.py"
# The account's root, as ministack knows it.
ROOT_USER = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Emulator:
    def __init__(self, log):
        self.port, self.log = free_port(), Path(log)
        self.folder = tempfile.TemporaryDirectory()
        self.process = None

    @property
    def url(self):
        return f"http://localhost:{self.port}"

    @property
    def environment(self):
        """What makes a program of AWS speak to it instead."""
        return ROOT_USER | {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}

    def client(self, service):
        import boto3

        os.environ.update(self.environment)
        return boto3.client(service)

    def __enter__(self):
        settings = {
            "AUTH": "true",
            # Functions are started with its own variables: so they speak to it as well.
            "AWS_ENDPOINT_URL": self.url,
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": "127.0.0.1",
            "MINISTACK_HOST": "localhost",
            "MINISTACK_REGION": REGION,
            "S3_DATA_DIR": self.folder.name,
            "TMPDIR": self.folder.name,
            # Neither is needed, and both have ports of their own.
            "IOT_MTLS_ENABLED": "false",
            "SFTP_ENABLED": "false",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__], env=os.environ | ROOT_USER | settings, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"{self.url}/_ministack/health", timeout=2):
                    return self
            except OSError:
                time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"error: the emulator did not start; {self.log} says why")

    def __exit__(self, *_):
        # The functions that it started belong to its session, and are ended with it.
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.folder.cleanup()


def take_alarms_on_expressions():
    """It refuses alarms on expressions; here each is kept as an alarm on the first metric that it names."""
    from ministack.services.cloudformation import provisioners

    kept = provisioners._cw_metric_alarm_record

    def record(name, properties):
        queries = properties.get("Metrics")
        if queries:
            stat = next(query["MetricStat"] for query in queries if "MetricStat" in query)
            plain = {"Statistic": stat["Stat"], "Period": stat["Period"], **stat["Metric"]}
            properties = {key: value for key, value in properties.items() if key != "Metrics"} | plain
        return kept(name, properties)

    provisioners._cw_metric_alarm_record = record


def take_numbers_of_parameters():
    """It leaves a number that comes by a parameter a text, and then cannot compare it."""
    from ministack.services import lambda_svc

    limit_of = lambda_svc._sqs_esm_concurrency

    def limit(mapping, *others):
        scaling = mapping.get("ScalingConfig") or {}
        if "MaximumConcurrency" in scaling:
            scaling["MaximumConcurrency"] = int(scaling["MaximumConcurrency"])
        return limit_of(mapping, *others)

    lambda_svc._sqs_esm_concurrency = limit


def pass_for_tls():
    """It speaks no TLS, without which buckets and queues refuse everybody."""
    from ministack.core import iam_evaluator

    resolve = iam_evaluator._resolve_condition_key
    iam_evaluator._resolve_condition_key = (
        lambda key, context: "true" if key.lower() == "aws:securetransport" else resolve(key, context)
    )


def spread_batches():
    """Batches of items and the writing of results, without which a Distributed Map is none: a file beside the
    repository adds both, where it is there."""
    if PATCHES.is_file():
        runpy.run_path(str(PATCHES))
    else:
        print(f"skipped: {PATCHES} is not there", flush=True)


if __name__ == "__main__":
    spread_batches()
    take_alarms_on_expressions()
    take_numbers_of_parameters()
    pass_for_tls()
    # A function's runtime API answers in two writes, and would wait 40 ms between them.
    socketserver.StreamRequestHandler.disable_nagle_algorithm = True
    from ministack.app import main

    main()
