"""Prints deployments of `template.yaml` as JSON: the parameters, resources and policies of each.

Each line of the input is a deployment: its parameters as a JSON object. Each line of the output is a deployment too.
"""

import json
import logging
import sys

from template import Template

# The translator of SAM warns about metrics that it does not send.
logging.disable(logging.WARNING)

for line in sys.stdin:
    resolved = Template(json.loads(line))
    print(json.dumps({
        "parameters": resolved.parameters, "resources": resolved.resources, "policies": resolved.policies(),
    }), flush=True)
