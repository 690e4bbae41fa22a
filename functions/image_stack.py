"""Turns the stack that `sam build` has written into one whose functions are images, with `Package=image`.

SAM reads the type of a package as a literal, so no parameter of the template can choose it.
"""

import json

from samcli.yamlhelper import yaml_dump, yaml_parse

# Functions with packed models, and their programs. The others load models from S3 and remain archives.
PROGRAMS = {"ApiFunction": "api", "StreamFunction": "api", "BatchFunction": "batch"}
# Lambda cannot change a function's kind of package, so an image is another function, with another name.
SUFFIX = "-image"


def packed(built):
    """The built templates, and the folders of the programs that become images."""
    templates = {file: yaml_parse(file.read_text().replace("function:${Name}-api", f"function:${{Name}}-api{SUFFIX}")) for file in built.rglob("template.yaml")}
    folders = {PROGRAMS[name]: file.parent / written["Resources"][name]["Properties"]["CodeUri"]
               for file, written in templates.items() for name in PROGRAMS.keys() & written["Resources"].keys()}
    return templates, folders


def replace(templates, images, snapshots):
    """Puts images, by program, into the built templates; `snapshots` is whether versions have snapshots."""
    for file, written in templates.items():
        if "Package" in written["Parameters"]:
            written["Parameters"]["Package"] |= {"Default": "image", "AllowedValues": ["image"], "ConstraintDescription": "image; `make deploy` deploys archives, too"}
        for name in PROGRAMS.keys() & written["Resources"].keys():
            properties = written["Resources"][name]["Properties"]
            for field in ("CodeUri", "Runtime", "Handler"):
                del properties[field]
            properties |= {"PackageType": "Image", "ImageUri": images[PROGRAMS[name]]}
            properties["FunctionName"]["Fn::Sub"] += SUFFIX
            if snapshots:
                if "AutoPublishAlias" not in properties:
                    written = with_alias(written, name)
                    properties = written["Resources"][name]["Properties"]
                properties["SnapStart"] = {"ApplyOn": "PublishedVersions"}
        file.write_text(yaml_dump(written))


def with_alias(written, name):
    """A template whose function has an alias that requests get, since only versions have snapshots. Every parameter
    publishes a version, as in the main template.
    """
    # The event source follows the alias by itself.
    written = json.loads(json.dumps(written).replace(json.dumps({"Fn::GetAtt": [name, "Arn"]}), json.dumps({"Ref": f"{name}.Alias"})))
    parameters = {"Fn::Join": [" ", [{"Ref": each} for each in written["Parameters"]]]}
    # Without it, SAM resolves no parameters when it computes the function's version.
    written["Parameters"]["Empty"] = {"Type": "String", "Default": "", "AllowedValues": [""]}
    properties = written["Resources"][name]["Properties"]
    properties["Description"] = {"Fn::Select": [0, [properties["Description"], parameters]]}
    properties["Environment"]["Variables"]["DEPLOYED_WITH"] = parameters
    properties |= {"AutoPublishAlias": "live", "AutoPublishAliasAllProperties": True, "AutoPublishCodeSha256": {"Ref": "Empty"}}
    return written
