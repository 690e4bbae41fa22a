"""Resolves `template.yaml` and its nested stacks as CloudFormation does: SAM's translator expands them, and conditions
and references are evaluated.

    deployment = Template({"Batch": "yes"})
    deployment.resources["Uploads"]["Properties"]["VisibilityTimeout"]
"""

import copy
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "template.yaml"
FILES = [FILE, *sorted((ROOT / "deploy").glob("*.yaml"))]
STACK, REGION, ACCOUNT = "kivu", "eu-west-1", "000000000000"

os.environ.setdefault("AWS_DEFAULT_REGION", REGION)

from samcli.yamlhelper import yaml_parse  # noqa: E402
from samtranslator.parser.parser import Parser  # noqa: E402
from samtranslator.translator.translator import Translator  # noqa: E402

IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/triton@sha256:" + "0" * 64
# Parameters that deploy as much as possible at once.
EVERYTHING = {
    "Batch": "yes", "JobEvents": "default", "LargeModels": "s3://b/models/m", "Fleet": "yes", "TritonImage": IMAGE, "WebAclArn": "arn", "DomainName": "a.b",
    "CertificateArn": f"arn:aws:acm:us-east-1:{ACCOUNT}:certificate/a", "HostedZoneId": "Z1", "AlarmEmail": "a@b.c", "CorsOrigins": "https://a.b",
    "ProvisionedConcurrency": "1", "WarmStart": "0 6 ? * MON-FRI *", "WarmStop": "0 20 ? * MON-FRI *", "Release": "Canary10Percent5Minutes",
    "WarmMost": "4", "ReleaseChecks": "yes", "ReleaseKey": f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:a",
    "KeyQuotas": "yes", "FleetStart": "0 6 * * *", "FleetStop": "0 20 * * *",
    "KmsKeyArn": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/a", "PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/a",
}
NESTED = "AWS::CloudFormation::Stack"
PSEUDO = {
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}
# The ARNs of resources, by type.
ARNS = {
    "AWS::S3::Bucket": "arn:aws:s3:::{name}",
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{{name}}",
    "AWS::SQS::Queue": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{name}}",
    "AWS::Lambda::Function": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{name}}",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{{name}}:*",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{{name}}",
    "AWS::IAM::ManagedPolicy": f"arn:aws:iam::{ACCOUNT}:policy/{{name}}",
    "AWS::SecretsManager::Secret": f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{{name}}-abcdef",
    "AWS::StepFunctions::StateMachine": f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{{name}}",
    "AWS::SNS::Topic": f"arn:aws:sns:{REGION}:{ACCOUNT}:{{name}}",
    "AWS::Events::Rule": f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{{name}}",
    "AWS::CodeDeploy::Application": f"arn:aws:codedeploy:{REGION}:{ACCOUNT}:application:{{name}}",
}
# Types whose `Ref` is the ARN instead of the name.
REFERRED_BY_ARN = {
    "AWS::SecretsManager::Secret", "AWS::StepFunctions::StateMachine", "AWS::SNS::Topic", "AWS::Lambda::Alias",
    "AWS::IAM::ManagedPolicy",
}
NAMES = ("FunctionName", "LogGroupName", "StateMachineName", "QueueName", "BucketName", "Name")
# The value of AWS::NoValue.
NOTHING = object()


def source(file=FILE):
    """A template as it is written."""
    return yaml_parse(file.read_text())


class Refused(Exception):
    """Parameters that CloudFormation would refuse, with the message of the template."""


class Template:
    """A template with values for its parameters. `resources` and `policies` include those of nested stacks."""

    def __init__(self, given=(), file=FILE, stack=STACK):
        self.file, self.stack = file, stack
        written = source(file)
        given = dict(given)
        unknown = given.keys() - written["Parameters"].keys()
        assert not unknown, f"{file} has no parameters {unknown}"
        self.parameters = {name: self._parameter(name, what, given) for name, what in written["Parameters"].items()}
        self._check_rules(written.pop("Rules", {}))
        translated = self._translate(written) if "Transform" in written else written
        self.conditions = translated.get("Conditions", {})
        self._mappings = translated.get("Mappings", {})
        self._translated = translated["Resources"]
        self._outputs = translated.get("Outputs", {})
        self.nested = {}
        own = {
            name: self.value(resource)
            for name, resource in self._translated.items()
            if self.holds(resource.get("Condition")) and resource["Type"] != NESTED
        }
        for name, resource in self._translated.items():
            if self.holds(resource.get("Condition")) and resource["Type"] == NESTED:
                self._child(name)
        self.resources = dict(own)
        for child in self.nested.values():
            twice = self.resources.keys() & child.resources.keys()
            assert not twice, f"two templates have resources {twice}"
            self.resources |= child.resources

    def of_type(self, kind):
        return {name: r["Properties"] for name, r in self.resources.items() if r["Type"] == kind}

    def properties(self, name):
        return self.resources[name]["Properties"]

    def outputs(self):
        return {
            name: self.value(output["Value"])
            for name, output in self._outputs.items()
            if self.holds(output.get("Condition"))
        }

    def policies(self):
        """The policy documents of each role, by the role's name; AWS's managed policies are given as their ARN."""
        managed = {ARNS["AWS::IAM::ManagedPolicy"].format(name=name): properties["PolicyDocument"]
                   for name, properties in self.of_type("AWS::IAM::ManagedPolicy").items()}
        attached = self.of_type("AWS::IAM::RolePolicy").values()
        return {
            role: [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
            + [policy["PolicyDocument"] for policy in attached if policy["RoleName"] == role]
            + [managed.get(arn, arn) for arn in properties.get("ManagedPolicyArns", [])]
            for role, properties in self.of_type("AWS::IAM::Role").items()
        }

    def templates(self):
        """This template and all nested ones."""
        return [self] + [each for child in self.nested.values() for each in child.templates()]

    def _translate(self, written):
        # `sam package` replaces local paths by URLs in S3; the translator opens those that are left.
        written.get("Globals", {}).get("Function", {}).pop("CodeUri", None)
        for resource in written["Resources"].values():
            if resource["Type"] == "AWS::Serverless::Function":
                resource["Properties"]["CodeUri"] = "s3://bucket/key"
            if resource["Type"] == "AWS::Serverless::StateMachine":
                resource["Properties"]["DefinitionUri"] = "s3://bucket/key"
        return Translator({}, Parser()).translate(written, copy.deepcopy(self.parameters))

    def _child(self, name):
        if name not in self.nested:
            properties = self._translated[name]["Properties"]
            file = self.file.parent / properties["TemplateURL"]
            parameters = self.value(properties.get("Parameters", {}))
            for key, value in parameters.items():
                assert not isinstance(value, list), f"{name}: the parameter {key} must not be a list"
            self.nested[name] = Template(parameters, file, f"{self.stack}-{name}-1ABCDEFGHIJKL")
        return self.nested[name]

    @staticmethod
    def _parameter(name, what, given):
        value = given[name] if name in given else what["Default"]
        is_valid = (
            ("AllowedValues" not in what or str(value) in map(str, what["AllowedValues"]))
            and re.fullmatch(what.get("AllowedPattern", ".*"), str(value))
            and (what["Type"] != "Number" or float(value) >= what.get("MinValue", 0))
            and (what["Type"] != "Number" or float(value) <= what.get("MaxValue", float("inf")))
        )
        if not is_valid:
            raise Refused(what.get("ConstraintDescription", f"{name}={value}"))
        return str(value).split(",") if what["Type"] == "CommaDelimitedList" else value

    def _check_rules(self, rules):
        for rule in rules.values():
            for assertion in rule["Assertions"]:
                if not self._test(assertion["Assert"]):
                    raise Refused(assertion["AssertDescription"])

    def holds(self, condition):
        return condition is None or self._test(self.conditions[condition])

    def _test(self, test):
        (kind, of), = test.items()
        if kind == "Fn::Equals":
            return str(self.value(of[0])) == str(self.value(of[1]))
        if kind == "Condition":
            return self.holds(of)
        if kind == "Fn::Contains":
            return str(self.value(of[1])) in map(str, of[0])
        tests = [self._test(one) for one in of]
        return {"Fn::Not": lambda: not tests[0], "Fn::And": lambda: all(tests), "Fn::Or": lambda: any(tests)}[kind]()

    def value(self, written):
        """The value of an expression."""
        if isinstance(written, list):
            return [value for value in map(self.value, written) if value is not NOTHING]
        if not isinstance(written, dict):
            return written
        if len(written) == 1:
            (kind, of), = written.items()
            if kind == "Ref" or kind.startswith("Fn::"):
                return self._function(kind, of)
        values = {key: self.value(value) for key, value in written.items()}
        return {key: value for key, value in values.items() if value is not NOTHING}

    def _function(self, kind, of):
        if kind == "Ref":
            return self._reference(of)
        if kind == "Fn::If":
            return self.value(of[1] if self.holds(of[0]) else of[2])
        if kind == "Fn::GetAtt":
            return self._attribute(*(of if isinstance(of, list) else of.split(".", 1)))
        if kind == "Fn::Sub":
            text, names = (of, {}) if isinstance(of, str) else of
            names = {name: self.value(value) for name, value in names.items()}
            filled = re.sub(r"\$\{([^!}][^}]*)\}", lambda match: str(self._named(match[1], names)), text)
            return filled.replace("${!", "${")
        if kind == "Fn::Join":
            return of[0].join(map(str, self.value(of[1])))
        if kind == "Fn::Split":
            return self.value(of[1]).split(of[0])
        if kind == "Fn::Select":
            return self.value(of[1])[int(of[0])]
        if kind == "Fn::GetAZs":
            return [f"{REGION}a", f"{REGION}b"]
        if kind == "Fn::FindInMap":
            mapping, first, second = of
            return self._mappings[mapping][str(self.value(first))][second]
        if kind == "Fn::Base64":
            return self.value(of)
        raise NotImplementedError(kind)

    def _named(self, name, names):
        if name in names:
            return names[name]
        return self._attribute(*name.split(".", 1)) if "." in name else self._reference(name)

    def _reference(self, name):
        if name == "AWS::NoValue":
            return NOTHING
        if name in PSEUDO:
            return PSEUDO[name]
        if name == "AWS::StackName":
            return self.stack
        if name in self.parameters:
            return self.parameters[name]
        resource = self._translated[name]
        if resource["Type"] == "AWS::Lambda::Alias":
            function = self.value(resource["Properties"]["FunctionName"])
            return f"{ARNS['AWS::Lambda::Function'].format(name=function)}:{resource['Properties']['Name']}"
        return self._arn(name) if resource["Type"] in REFERRED_BY_ARN else self._name(name)

    def _attribute(self, name, attribute):
        if attribute.startswith("Outputs."):
            return self._child(name).outputs()[attribute.removeprefix("Outputs.")]
        if attribute == "Arn" or (attribute == "Id" and self._translated[name]["Type"] in REFERRED_BY_ARN):
            return self._arn(name)
        return self._name(name) if attribute == "QueueName" else f"{self._name(name)}.{attribute}"

    def _name(self, name):
        resource = self._translated[name]
        for key in NAMES:
            if key in resource.get("Properties", {}):
                return self.value(resource["Properties"][key])
        return name.lower() if resource["Type"] == "AWS::S3::Bucket" else name

    def _arn(self, name):
        pattern = ARNS.get(self._translated[name]["Type"], f"arn:aws:x:{REGION}:{ACCOUNT}:{{name}}")
        return pattern.format(name=self._name(name))
