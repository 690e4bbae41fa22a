"""A Lambda function in Python that embeds texts with Kivu inside: `{"texts": ["…"]}` → `{"embeddings": [[…]]}`."""

import os

from kivuml import KivuError, load

# Before the first request, when a new environment has a whole processor.
MODEL = load(os.environ.get("MODEL", os.path.join(os.path.dirname(os.path.abspath(__file__)), "model")))


def handler(event, context):
    if not isinstance(event, dict) or not isinstance(event.get("texts"), list):
        return {"error": "expected a list `texts` in the event"}
    try:
        return {"embeddings": MODEL.encode(event["texts"], prompt_name=event.get("prompt_name")).tolist()}
    except (KivuError, TypeError) as error:
        # Other errors fail the invocation, and are counted as Lambda's errors.
        return {"error": str(error)}
