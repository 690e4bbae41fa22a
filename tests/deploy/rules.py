"""Tests that parameters which cannot work are refused with a sentence, and that similar ones are accepted."""

import sys

from samcli.cli.types import CfnParameterOverridesType

from template import EVERYTHING, Refused, Template

IMAGE = "000000000000.dkr.ecr.eu-west-1.amazonaws.com/triton"
DIGEST = IMAGE + "@sha256:" + "0" * 64
CERTIFICATE = "arn:aws:acm:us-east-1:000000000000:certificate/a"
JWT = {"AuthMode": "jwt", "JwtIssuer": "https://a.b", "JwtAudience": "c"}
DOMAIN = {"DomainName": "a.b", "CertificateArn": CERTIFICATE}
FLEET = {"Fleet": "yes", "TritonImage": DIGEST}
INSTANCES = {"LargeModels": "s3://b/models/m", "LargeRunsOn": "instances", "LargeMemory": "4096"}
VPC = {"VpcSubnets": "subnet-1,subnet-2", "VpcSecurityGroups": "sg-1"}
WARM = {"WarmStart": "0 6 ? * MON-FRI *", "WarmStop": "0 20 ? * MON-FRI *"}
CHECKS = {"ReleaseChecks": "yes", "Release": "Canary10Percent5Minutes", "ReleaseKey": "arn:aws:secretsmanager:eu-west-1:000000000000:secret:a"}
START, STOP = {"FleetStart": "0 6 * * 1-5"}, {"FleetStop": "0 20 * * 1-5"}
SINK = "arn:aws:s3vectors:eu-west-1:000000000000:bucket/vectors/index/docs"

REFUSED = (
    ({"AuthMode": "jwt"}, "needs JwtIssuer and JwtAudience"),
    (JWT | {"JwtAudience": ""}, "needs JwtIssuer and JwtAudience"),
    ({"AuthMode": "iam", "WebAclArn": "arn"}, "does not work with WebAclArn"),
    ({"DomainName": "a.b"}, "needs CertificateArn"),
    ({"HostedZoneId": "Z1"}, "needs DomainName"),
    ({"Fleet": "yes"}, "needs TritonImage"),
    (FLEET | {"TritonImage": IMAGE + ":latest"}, "by its digest"),
    (FLEET | {"FleetStart": "0"}, "five fields"),
    (FLEET | {"FleetTypes": "g6.xlarge"}, "exactly three instance types"),
    (FLEET | {"FleetTypes": "g6.xlarge,g5.xlarge,g4dn.xlarge,g4dn.2xlarge"}, "exactly three instance types"),
    ({"CorsOrigins": "https://a.b, https://c.d"}, "without spaces"),
    (FLEET | START, "need each other"),
    (FLEET | STOP, "need each other"),
    ({"LargeRunsOn": "instances", "LargeMemory": "2048"}, "needs LargeModels"),
    ({"MaxMemory": "800MB"}, "needs LoadModels=on-demand"),
    ({"LoadModels": "on-demand", "MaxMemory": "half"}, "such as 800MB"),
    (INSTANCES | {"LargeMemory": "3008"}, "whole CPUs"),
    ({"FunctionUrl": "yes"}, "needs ReservedConcurrency"),
    ({"Zones": "eu-west-1a"}, "two availability zones"),
    ({"LargeModels": "models"}, "models in S3"),
    (JWT | {"FunctionUrl": "unlimited"}, "neither an authorizer"),
    ({"FunctionUrl": "unlimited", "WebAclArn": "arn"}, "neither an authorizer"),
    ({"Streaming": "url"}, "needs StreamingConcurrency"),
    ({"StreamingConcurrency": "1"}, "needs Streaming"),
    (JWT | {"Streaming": "rest"}, "neither an authorizer"),
    ({"Streaming": "rest", "WebAclArn": "arn"}, "neither an authorizer"),
    ({"Streaming": "rest", "StreamingMemory": "512"}, "StreamingMemory=512"),
    (FLEET | {"FleetUrls": "http://a:8000"}, "creates a fleet and a network"),
    (FLEET | VPC, "creates a fleet and a network"),
    ({"VpcSubnets": "subnet-1"}, "need each other"),
    ({"VpcSecurityGroups": "sg-1"}, "need each other"),
    ({"FleetPolicy": "fleet"}, "needs Fleet=yes or FleetUrls"),
    ({"FleetUrls": "triton:8001"}, "grpcs URLs"),
    ({"ProvisionedConcurrency": "1", "WarmStart": "0 6 ? * * *"}, "need each other"),
    (WARM, "and ProvisionedConcurrency"),
    ({"WarmMost": "2"}, "needs ProvisionedConcurrency"),
    (CHECKS | {"Release": "AllAtOnce"}, "needs a gradual Release"),
    (CHECKS | {"ReleaseKey": ""}, "needs ReleaseKey"),
    (CHECKS | {"ReleaseKey": "kivu_key"}, "ReleaseKey=kivu_key"),
    (WARM | {"ProvisionedConcurrency": "1", "WarmStop": "0 6 * * 1-5"}, "six fields"),
    ({"SnapStart": "yes"}, "SnapStart=yes needs Package=image"),
    ({"Package": "image"}, "only `make deploy` deploys images"),
    ({"LogGroup": "a b"}, "LogGroup=a b"),
    ({"BatchSink": SINK}, "BatchSink needs Batch=yes"),
    (FLEET | {"Batch": "yes", "BatchSink": SINK}, "does not work with Fleet=yes"),
    ({"Batch": "yes", "BatchSink": "s3vectors://b/i"}, "an index's ARN"),
    ({"Batch": "yes", "BatchSinkMetadata": "title"}, "BatchSinkMetadata needs BatchSink"),
    ({"KmsKeyArn": "alias/a"}, "KmsKeyArn=alias/a"),
    ({"PermissionsBoundary": "a"}, "PermissionsBoundary=a"),
)
ACCEPTED = (
    JWT, JWT | {"WebAclArn": "arn"}, {"AuthMode": "iam"} | DOMAIN, DOMAIN | {"WebAclArn": "arn", "HostedZoneId": "Z1"},
    {"Batch": "yes", "BatchSink": SINK, "BatchSinkMetadata": "title,url"},
    EVERYTHING, VPC, VPC | {"FleetUrls": "grpc://a:8001,https://b:8000", "FleetPolicy": "fleet"}, VPC | INSTANCES, WARM | {"ProvisionedConcurrency": "1"}, {"ProvisionedConcurrency": "1", "WarmMost": "4"}, CHECKS, CHECKS | {"ReleaseKey": "", "AuthMode": "iam"},
    {"LoadModels": "on-demand"}, {"LoadModels": "on-demand", "MaxMemory": "800MB"},
    {"FunctionUrl": "unlimited", "AuthMode": "iam"}, {"FunctionUrl": "yes", "ReservedConcurrency": "2"},
    {"Streaming": "url", "StreamingConcurrency": "1"}, {"Streaming": "unlimited"}, {"Streaming": "rest", "AuthMode": "iam"}, FLEET, FLEET | START | STOP, INSTANCES, {"LargeModels": "s3://b/models/m,s3://b/models/n", "LargeMemory": "1769"},
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
