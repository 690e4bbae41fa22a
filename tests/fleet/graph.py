"""A model of a Triton repository that runs the graph in its folder, whatever the names of its tensors.

The first input is the token ids, the second the mask. With the parameter `pooling` it returns the mean of a text's
token vectors, as an embedding model does.
"""

import json
import os
import sys
import time

# Triton's Python ignores the environment variable.
sys.path[:0] = os.environ["PYTHONPATH"].split(":")

import numpy
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.output = config["output"][0]["name"]
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        self.pooling = parameters.get("pooling")
        # A slow model, for tests of queues and deadlines.
        self.delay = float(parameters.get("delay", 0))
        # If this file exists, the model is slow.
        self.slow = parameters.get("slow", "")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options)
        self.names = [tensor.name for tensor in self.session.get_inputs()]

    def run(self, request):
        given = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]
        ids, mask = (tensor.astype(numpy.int64) for tensor in given)
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
        values = self.session.run(None, {name: known[name] for name in self.names})[0]
        if self.pooling == "mean":
            weights = mask[..., None].astype(numpy.float32)
            values = (values * weights).sum(axis=1) / weights.sum(axis=1)
        return values.astype(numpy.float32)

    def execute(self, requests):
        time.sleep(1.5 if os.path.exists(self.slow) else self.delay)
        tensors = [pb_utils.Tensor(self.output, self.run(request)) for request in requests]
        return [pb_utils.InferenceResponse(output_tensors=[tensor]) for tensor in tensors]
