"""Reads `template.yaml` as AWS would: translated by SAM's own translator, conditions and references worked out.

    template = Template({"Batch": "yes"})
    template.resources["Uploads"]["Properties"]["VisibilityTimeout"]
"""

import copy
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "template.yaml"
STACK, REGION, ACCOUNT = "kivu", "eu-west-1", "000000000000"

os.environ.setdefault("AWS_DEFAULT_REGION", REGION)

from samcli.yamlhelper import yaml_parse  # noqa: E402
from samtranslator.parser.parser import Parser  # noqa: E402
from samtranslator.translator.translator import Translator  # noqa: E402

PSEUDO = {
    "AWS::StackName": STACK,
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{STACK}/1",
}
# What a reference to a resource gives where that is not its name, and how ARNs are made of names.
ARNS = {
    "AWS::S3::Bucket": "arn:aws:s3:::{name}",
    "AWS::SQS::Queue": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{name}}",
    "AWS::Lambda::Function": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{name}}",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{{name}}:*",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{{name}}",
    "AWS::SecretsManager::Secret": f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{{name}}-abcdef",
    "AWS::StepFunctions::StateMachine": f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{{name}}",
    "AWS::SNS::Topic": f"arn:aws:sns:{REGION}:{ACCOUNT}:{{name}}",
    "AWS::Events::Rule": f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{{name}}",
}
REFERRED_BY_ARN = {
    "AWS::SecretsManager::Secret", "AWS::StepFunctions::StateMachine", "AWS::SNS::Topic", "AWS::Lambda::Alias",
}
NAMES = ("FunctionName", "LogGroupName", "StateMachineName", "QueueName", "BucketName", "Name")
# Stands for AWS::NoValue.
NOTHING = object()


def source():
    """The template as it is written."""
    return yaml_parse(FILE.read_text())


class Template:
    def __init__(self, given=()):
        written = source()
        given = dict(given)
        unknown = given.keys() - written["Parameters"].keys()
        assert not unknown, f"the template has no parameters {unknown}"
        self.parameters = {name: self._parameter(name, what, given) for name, what in written["Parameters"].items()}
        # What the translator opens itself must be there; the CLI would have put S3 addresses in its place.
        for resource in written["Resources"].values():
            for key in ("CodeUri", "DefinitionUri"):
                if key in resource.get("Properties", {}):
                    resource["Properties"][key] = "s3://bucket/key"
            if resource["Type"] == "AWS::Serverless::Function":
                resource["Properties"]["CodeUri"] = "s3://bucket/key"
        written["Globals"]["Function"].pop("CodeUri")
        translated = Translator({}, Parser()).translate(written, copy.deepcopy(self.parameters))
        self.conditions = translated.get("Conditions", {})
        self._translated = translated["Resources"]
        self.resources = {
            name: self.value(resource)
            for name, resource in self._translated.items()
            if self.holds(resource.get("Condition"))
        }

    def of_type(self, kind):
        return {name: r["Properties"] for name, r in self.resources.items() if r["Type"] == kind}

    def properties(self, name):
        return self.resources[name]["Properties"]

    @staticmethod
    def _parameter(name, what, given):
        value = given.get(name, what.get("Default"))
        return str(value).split(",") if what["Type"] == "CommaDelimitedList" else value

    def holds(self, condition):
        return condition is None or self._test(self.conditions[condition])

    def _test(self, test):
        (kind, of), = test.items()
        if kind == "Fn::Equals":
            return str(self.value(of[0])) == str(self.value(of[1]))
        if kind == "Condition":
            return self.holds(of)
        tests = [self._test(one) for one in of]
        return {"Fn::Not": lambda: not tests[0], "Fn::And": lambda: all(tests), "Fn::Or": lambda: any(tests)}[kind]()

    def value(self, written):
        """What something written comes to."""
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
        if name in self.parameters:
            return self.parameters[name]
        resource = self._translated[name]
        if resource["Type"] == "AWS::Lambda::Alias":
            function = self.value(resource["Properties"]["FunctionName"])
            return f"{ARNS['AWS::Lambda::Function'].format(name=function)}:{resource['Properties']['Name']}"
        return self._arn(name) if resource["Type"] in REFERRED_BY_ARN else self._name(name)

    def _attribute(self, name, attribute):
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
