"""A model of a Triton repository that converts logits to labels and scores, best first."""

import json
import os
import sys

# Triton's Python ignores the environment variable.
sys.path[:0] = os.environ["PYTHONPATH"].split(":")

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.labels = numpy.array(config["parameters"]["labels"]["string_value"].split(","), dtype=object)

    def execute(self, requests):
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "LOGITS").as_numpy()
            powers = numpy.exp(logits - logits.max(axis=-1, keepdims=True))
            scores = powers / powers.sum(axis=-1, keepdims=True)
            best = numpy.argsort(-scores, axis=-1)
            labels = numpy.char.encode(self.labels[best].astype(str)).astype(object)
            tensors = [
                pb_utils.Tensor("LABEL", labels),
                pb_utils.Tensor("SCORE", numpy.take_along_axis(scores, best, axis=-1)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
