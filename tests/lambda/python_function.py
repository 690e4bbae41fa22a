"""Runs the example of a Lambda function in Python with AWS's own runtime client, `awslambdaric`.

    python tests/lambda/python_function.py FUNCTION PACKAGES [--starts 5]

FUNCTION is the folder with `app.py` and `model`, and PACKAGES the layer's folder `python`. Prints the time from the start
of the process to the first answer, and the median of later answers.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from runtime_api import Function, expect

DIMENSIONS = 384


class PythonFunction(Function):
    def __init__(self, options, log):
        # Lambda's runtime has the layer at /opt/python, and the code at /var/task.
        variables = {
            "PATH": os.environ["PATH"],
            "AWS_LAMBDA_FUNCTION_NAME": "embed",
            "LAMBDA_TASK_ROOT": str(options.function),
            "PYTHONPATH": f"{options.packages.resolve()}:{options.function.resolve()}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        super().__init__([sys.executable, "-m", "awslambdaric", "app.handler"], variables, options.function, log)

    def invoke(self, event):
        """Whether the function answers or fails, and the answer."""
        route, _, body, _ = self.next(event)
        return route, json.loads(body)


def check(function):
    """Answers and errors; returns the time of the first answer."""
    kind, answer = function.invoke({"texts": ["The ferry leaves at seven.", "猫 🐈"]})
    first = time.monotonic() - function.started
    expect("the answer", kind, "response")
    expect("the vectors", [len(vector) for vector in answer.get("embeddings", [])], [DIMENSIONS] * 2)
    norm = sum(value * value for value in answer["embeddings"][0])
    expect("the vector's length", round(norm, 3), 1.0)
    for event, message in (
        ({"texts": ["a", ""]}, "expected a text in `texts[1]`, but found an empty one"),
        ({"texts": [7]}, "expected `texts[0]` to be a string, but found `int`"),
        ({"texts": []}, "expected at least one text in `texts`, but found none"),
        ({"text": "a"}, "expected a list `texts` in the event"),
        ([], "expected a list `texts` in the event"),
    ):
        expect(f"the answer to {event}", function.invoke(event), ("response", {"error": message}))
    _, again = function.invoke({"texts": ["The ferry leaves at seven."]})
    expect("a repeated vector", again["embeddings"][0], answer["embeddings"][0])
    return first


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("function", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--starts", type=int, default=1)
    options = parser.parse_args()
    starts = []
    for _ in range(options.starts):
        with tempfile.NamedTemporaryFile() as log, PythonFunction(options, log.name) as function:
            starts.append(check(function))
            times = []
            for _ in range(50):
                began = time.monotonic()
                function.invoke({"texts": ["The ferry leaves at seven."]})
                times.append(time.monotonic() - began)
    print(f"first answer after {statistics.median(starts) * 1e3:.0f} ms, later ones within {statistics.median(times) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
