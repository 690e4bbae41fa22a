"""Tests that parameters which cannot work are refused with a sentence, and that similar ones are accepted."""

import sys

from samcli.cli.types import CfnParameterOverridesType

from template import Refused, Template

IMAGE = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton"
DIGEST = IMAGE + "@sha256:" + "0" * 64
CERTIFICATE = "arn:aws:acm:us-east-1:000000000000:certificate/a"
JWT = {"AuthMode": "jwt", "JwtIssuer": "https://a.b", "JwtAudience": "c"}
DOMAIN = {"DomainName": "a.b", "CertificateArn": CERTIFICATE}
FLEET = {"Fleet": "yes", "TritonImage": DIGEST}
INSTANCES = {"LargeModels": "s3://b/models/m", "LargeRunsOn": "instances"}
START, STOP = {"FleetStart": "0 6 * * 1-5"}, {"FleetStop": "0 20 * * 1-5"}

REFUSED = (
    ({"AuthMode": "jwt"}, "needs JwtIssuer and JwtAudience"),
    (JWT | {"JwtAudience": ""}, "needs JwtIssuer and JwtAudience"),
    ({"AuthMode": "iam", "WebAclArn": "arn"}, "does not work with WebAclArn"),
    ({"DomainName": "a.b"}, "needs CertificateArn"),
    ({"HostedZoneId": "Z1"}, "needs DomainName"),
    ({"Fleet": "yes"}, "needs TritonImage"),
    (FLEET | {"TritonImage": IMAGE + ":latest"}, "by its digest"),
    (FLEET | {"FleetStart": "0"}, "five fields"),
    (FLEET | START, "need each other"),
    (FLEET | STOP, "need each other"),
    ({"LargeRunsOn": "instances"}, "needs LargeModels"),
    (INSTANCES | {"LargeMemory": "1769"}, "at least 2048"),
    ({"LargeModels": "models"}, "models in S3"),
)
ACCEPTED = (
    JWT, JWT | {"WebAclArn": "arn"}, {"AuthMode": "iam"} | DOMAIN, DOMAIN | {"WebAclArn": "arn", "HostedZoneId": "Z1"},
    FLEET, FLEET | START | STOP, INSTANCES, {"LargeModels": "s3://b/models/m,s3://b/models/n", "LargeMemory": "1769"},
)


def main():
    for parameters, expected in REFUSED:
        try:
            Template(parameters)
        except Refused as refused:
            if expected not in str(refused):
                sys.exit(f"{parameters}: expected `{expected}`, but found `{refused}`")
        else:
            sys.exit(f"expected {parameters} to be refused")
    for parameters in ACCEPTED:
        Template(parameters)
    # The form of PARAMETERS in the Makefile, read by SAM.
    given = """Architecture=arm64 FleetStart="0 6 * * 1-5" FleetStop="0 20 * * 1-5" """
    found = CfnParameterOverridesType().convert((given,), None, None)
    if found != {"Architecture": "arm64"} | START | STOP:
        sys.exit(f"expected both schedules in SAM's parameters, but found {found}")


if __name__ == "__main__":
    main()
