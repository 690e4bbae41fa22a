"""Runs the graph in this folder, for Triton servers without a backend for ONNX."""

import json
import os
import sys

# Triton's Python ignores PYTHONPATH.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
        values = self.session.run(self.outputs, given)
        tensors = [pb_utils.Tensor(name, value) for name, value in zip(self.outputs, values)]
        return pb_utils.InferenceResponse(output_tensors=tensors)
