"""Tests the quota check of `make deploy`, with stubs for AWS."""

import contextlib
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "functions"))
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")

import operate  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402

# As in a new account.
QUOTAS = {"L-B99A9384": ("Concurrent executions", 10), "L-DB2E81BA": ("On-demand GPUs", 0), "L-3819A6DF": ("Spot GPUs", 0)}
IMAGE = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton@sha256:" + "0" * 64


class Aws:
    def describe_stacks(self, **_):
        raise ClientError({"Error": {"Code": "ValidationError"}}, "DescribeStacks")

    def describe_instance_types(self, InstanceTypes):
        return {"InstanceTypes": [{"VCpuInfo": {"DefaultVCpus": 4}} for _ in InstanceTypes]}

    def get_service_quota(self, ServiceCode, QuotaCode):
        name, value = QUOTAS[QuotaCode]
        return {"Quota": {"QuotaName": name, "Value": float(value)}}


def warnings(parameters):
    with contextlib.redirect_stderr(io.StringIO()) as text:
        operate.quotas(SimpleNamespace(stack="kivu", parameters=parameters))
    return text.getvalue().splitlines()


def main():
    operate.boto3 = SimpleNamespace(client=lambda _: Aws())
    for parameters, expected in (
        ("", []),
        ("Batch=yes", []),
        ("Batch=yes BatchConcurrency=20", ["--quota-code L-B99A9384 --desired-value 41"]),
        ("Batch=yes BatchConcurrency=5", ["--quota-code L-B99A9384 --desired-value 11"]),
        ("Batch=yes BatchConcurrency=4 LargeModels=s3://b/models/m", []),
        ("ProvisionedConcurrency=2", ["--quota-code L-B99A9384 --desired-value 102"]),
        (f"Fleet=yes TritonImage={IMAGE} FleetStart='0 6 * * 1-5'", ["L-DB2E81BA --desired-value 4", "L-3819A6DF --desired-value 12"]),
    ):
        found = warnings(parameters)
        if len(found) != len(expected) or any(part not in line for part, line in zip(expected, found)):
            sys.exit(f"{parameters}: expected {expected}, but found {found}")


if __name__ == "__main__":
    main()
