"""A model of a Triton repository that translates into a single language, and returns integers although it declares floats."""

import json
import os
import sys

# Triton's Python ignores the environment variable.
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import generation
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.options = {"forced_bos_token_id": int(config["parameters"]["language"]["string_value"])}
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "generation.json"), encoding="utf-8") as file:
            self.settings = json.load(file)
        graphs = [os.path.join(folder, name) for name in ("encoder.onnx", "decoder.onnx")]
        self.generator = generation.Generator(*graphs, self.settings)

    def execute(self, requests):
        responses = []
        for request in requests:
            ids, mask = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("input_ids", "attention_mask")
            )
            texts = [text for text, _ in self.generator.generate(ids, mask, self.options)]
            targets = numpy.full([len(texts), max(map(len, texts))], self.settings["pad_token_id"], dtype=numpy.int64)
            for row, text in zip(targets, texts):
                row[: len(text)] = text
            tensor = pb_utils.Tensor("generated_indices", targets)
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
