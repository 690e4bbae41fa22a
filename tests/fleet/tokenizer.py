"""A model of a Triton repository that tokenizes texts with the `tokenizer.json` in its folder."""

import json
import os
import sys

# Triton's Python ignores the environment variable.
sys.path[:0] = os.environ["PYTHONPATH"].split(":")

import numpy
import tokenizers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.text = config["input"][0]["name"]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.enable_truncation(int(parameters["max_tokens"]))
        # Some fleets pad every text to the maximum length.
        fixed = int(parameters["max_tokens"]) if parameters.get("padding") == "max_length" else None
        self.tokenizer.enable_padding(length=fixed, pad_id=int(parameters["padding_id"]))

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, self.text).as_numpy().flatten()
            encodings = self.tokenizer.encode_batch([text.decode("utf-8") for text in texts])
            ids = numpy.array([encoding.ids for encoding in encodings], dtype=numpy.int64)
            mask = numpy.array([encoding.attention_mask for encoding in encodings], dtype=numpy.int64)
            tensors = [pb_utils.Tensor(name, value) for name, value in zip(self.outputs, [ids, mask])]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
