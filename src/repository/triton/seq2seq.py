"""Generates with the graphs in this folder: from token ids of texts to those of translations or summaries."""

import json
import os
import sys

# Triton's Python ignores PYTHONPATH.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import generation
import numpy
import triton_python_backend_utils as pb_utils

OPTIONS = "generate_parameters"


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.known = config["parameters"][OPTIONS]["string_value"].split(",")
        folder = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(folder, "generation.json"), encoding="utf-8") as file:
            settings = json.load(file)
        graphs = [os.path.join(folder, settings[graph]) for graph in ("encoder", "decoder")]
        self.generator = generation.Generator(*graphs, settings)
        self.pad = settings["pad_token_id"]
        # The first run of a graph is slow, so it happens before the server is ready.
        ids = numpy.full([1, 16], settings["eos_token_ids"][0])
        self.generator.generate(ids, numpy.ones_like(ids), {"max_length": 4, "min_length": 0, "num_beams": 2})

    def execute(self, requests):
        alike = {}
        for place, request in enumerate(requests):
            options = json.loads(request.parameters() or "{}").get(OPTIONS, "{}")
            alike.setdefault(options, []).append(place)
        answers = [None] * len(requests)
        for options, places in alike.items():
            for place, answer in zip(places, self.answer([requests[place] for place in places], options)):
                answers[place] = answer
        return answers

    def answer(self, requests, options):
        """Generates for requests of the same options together; each on its own where that fails, so that one request's failure is not another's."""
        try:
            return self.generate(requests, json.loads(options))
        except Exception as error:
            if len(requests) == 1:
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
            return [answer for request in requests for answer in self.answer([request], options)]

    def generate(self, requests, options):
        others = [name for name in options if name not in self.known]
        if others:
            raise ValueError(f"expected options among {self.known}, but found {others}")
        given = [[self.input(request, name) for name in ("input_ids", "attention_mask")] for request in requests]
        ids = filled([row for ids, _ in given for row in ids], self.pad)
        mask = filled([row for _, mask in given for row in mask], 0)
        is_wanted = lambda: not all(request.is_cancelled() for request in requests)
        texts = self.generator.generate(ids, mask, options, is_wanted)
        answers, count = [], len(texts) // len(ids)
        for ids, _ in given:
            own, texts = texts[: len(ids) * count], texts[len(ids) * count :]
            targets = filled([text for text, _ in own], self.pad).astype(numpy.int64)
            scores = numpy.array([[score] for _, score in own], dtype=numpy.float32)
            tensors = [pb_utils.Tensor("generated_indices", targets), pb_utils.Tensor("sequences_scores", scores)]
            answers.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return answers

    def input(self, request, name):
        return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def filled(rows, value):
    """Rows of one length, those that are shorter filled up."""
    longest = max(map(len, rows))
    return numpy.array([[*row, *[value] * (longest - len(row))] for row in rows])
