"""Prints deployments of `template.yaml` as JSON: a list with the parameters, resources and policies of each.

Each argument is a deployment: its parameters as a JSON object.
"""

import json
import sys

from template import Template

deployments = [Template(json.loads(parameters)) for parameters in sys.argv[1:]]
print(json.dumps([
    {"parameters": each.parameters, "resources": each.resources, "policies": each.policies()} for each in deployments
]))
