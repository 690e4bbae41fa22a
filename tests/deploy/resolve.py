"""Prints what `template.yaml` comes to, as JSON: a list of deployments, each with its parameters and its resources.

Each argument is a deployment: parameters as a JSON object.
"""

import json
import sys

from template import Template

print(json.dumps([
    {"parameters": parameters, "resources": Template(parameters).resources}
    for parameters in map(json.loads, sys.argv[1:])
]))
