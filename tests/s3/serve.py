"""A server of S3, and one before it that is too busy for two requests of three: python tests/s3/serve.py

For tests that are written in another language: prints where both are, and what is in the bucket under each prefix that
it is given a line; ends with its input.
"""

import json
import sys

from harness import BUCKET, Faults, Weed

weed = Weed()
busy = Faults(weed.endpoint)
busy.fault = lambda request, seen: "slow down" if seen % 3 else None
try:
    print(json.dumps({"bucket": BUCKET, "calm": weed.endpoint, "busy": busy.endpoint}), flush=True)
    for line in sys.stdin:
        print(json.dumps({key: weed.get(key).decode() for key in weed.keys(line.strip())}), flush=True)
finally:
    busy.stop()
    weed.stop()
