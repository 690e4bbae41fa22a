"""Tokenizes texts, with the `tokenizer.json` in this folder and the package `tokenizers`."""

import json
import os
import sys

# Triton's Python ignores PYTHONPATH.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]

import numpy
import tokenizers
import triton_python_backend_utils as pb_utils

WANTED = {
    "input_ids": lambda encoding: encoding.ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "token_type_ids": lambda encoding: encoding.type_ids,
}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.types = {
            tensor["name"]: pb_utils.triton_string_to_numpy(tensor["data_type"]) for tensor in config["output"]
        }
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        path = os.path.join(args["model_repository"], args["model_version"], "tokenizer.json")
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.enable_truncation(int(parameters["max_tokens"]))
        self.tokenizer.enable_padding(pad_id=int(parameters["padding_id"]))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().flatten()
        encodings = self.tokenizer.encode_batch([text.decode("utf-8") for text in texts])
        tensors = [
            pb_utils.Tensor(name, numpy.array([WANTED[name](encoding) for encoding in encodings], dtype=type))
            for name, type in self.types.items()
        ]
        return pb_utils.InferenceResponse(output_tensors=tensors)
