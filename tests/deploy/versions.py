"""Tests that every parameter, and the code, publishes a version of each function that has an alias: the pinned SAM
translator gives the version another logical ID, and the function's own configuration differs, without which Lambda
publishes no version.
"""

import copy
import json
import logging
import sys

from template import FILES, Parser, Translator, source

# The translator of SAM warns about metrics that it does not send.
logging.disable(logging.WARNING)


def has_alias(written):
    functions = [resource["Properties"] for resource in written["Resources"].values()
                 if resource["Type"] == "AWS::Serverless::Function"]
    return any("AutoPublishAlias" in each for each in [*functions, written.get("Globals", {}).get("Function", {})])


def defaults(written):
    """A value for each parameter."""
    return {name: str(what.get("Default", what.get("AllowedValues", ["1"])[0])) for name, what in written["Parameters"].items()}


def another(what, value):
    """Another value of a parameter; none if it has only one."""
    allowed = [str(each) for each in what.get("AllowedValues", [])]
    if allowed:
        return next((each for each in allowed if each != value), None)
    return str(int(value) + 1) if what["Type"] == "Number" else value + "1"


def translated(written, parameters, code="s3://bucket/key"):
    """The versions and functions of a template."""
    # Without the objects that aliases of YAML share, as in the document that CloudFormation gets.
    written = json.loads(json.dumps(written))
    written.get("Globals", {}).get("Function", {}).pop("CodeUri", None)
    for resource in written["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = code
    resources = Translator({}, Parser()).translate(written, copy.deepcopy(parameters))["Resources"]
    versions = {name for name, resource in resources.items() if resource["Type"] == "AWS::Lambda::Version"}
    functions = {name: resource["Properties"] for name, resource in resources.items() if resource["Type"] == "AWS::Lambda::Function"}
    return versions, functions


def deployed(value, parameters):
    """A function's properties as CloudFormation deploys them, as far as they depend on parameters alone."""
    if isinstance(value, list):
        return [deployed(each, parameters) for each in value]
    if not isinstance(value, dict):
        return value
    if "Fn::Select" in value:
        index, values = value["Fn::Select"]
        return deployed(values[int(index)] if isinstance(values, list) else values, parameters)
    if value.keys() == {"Ref"}:
        return parameters.get(value["Ref"], value)
    return {key: deployed(each, parameters) for key, each in value.items()}


def expect(what, holds):
    if not holds:
        sys.exit(f"expected {what}")


def check(file, written):
    given = defaults(written)
    versions, functions = translated(written, given)
    expect(f"the same versions of {file.name} again", translated(written, given)[0] == versions)
    expect(f"other versions of {file.name} with other code", not versions & translated(written, given, "s3://bucket/other")[0])
    for name, what in written["Parameters"].items():
        value = another(what, given[name])
        if value is None:
            continue
        changed = given | {name: value}
        after, functions_after = translated(written, changed)
        expect(f"new versions of {file.name} after a change of {name}", len(after) == len(versions) and not after & versions)
        for function, properties in functions.items():
            expect(f"{function} to be configured differently after a change of {name}",
                   deployed(properties, given) != deployed(functions_after[function], changed))
    return len(versions)


def main():
    found = {file.name: check(file, written) for file in FILES if has_alias(written := source(file))}
    expected = {"template.yaml": 1, "large.yaml": 2, "stream.yaml": 1}
    expect(f"versions in {expected}, but found {found}", found == expected)


if __name__ == "__main__":
    main()
