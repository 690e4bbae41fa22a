"""Prints deployments of `template.yaml` as JSON: the parameters, resources and policies of each.

Each line of the input is a deployment: its parameters as a JSON object, or `"everything"`. Each line of the output is a
deployment too.
"""

import json
import logging
import sys

from template import EVERYTHING, Template

# The translator of SAM warns about metrics that it does not send.
logging.disable(logging.WARNING)

for line in sys.stdin:
    given = json.loads(line)
    resolved = Template(EVERYTHING if given == "everything" else given)
    print(json.dumps({
        "parameters": resolved.parameters, "resources": resolved.resources, "policies": resolved.policies(),
    }), flush=True)
