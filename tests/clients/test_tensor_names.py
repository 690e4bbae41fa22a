"""Clients that were written for a fleet's own tensor names and lengths, against models whose recipes have them.

    TEST_URL=http://127.0.0.1:8080 python tests/clients/test_tensor_names.py

The server serves what tests/fixtures/recipes say: `zst`, an entailment model under the names of a TorchScript
export whose clients pad to 256 tokens of INT32, and `ensemble_model`, which takes raw text and gives a vector
under the number of an export's output.
"""

import sys
import unittest
import urllib.parse
from pathlib import Path

sys.dont_write_bytecode = sys.pycache_prefix is None  # no __pycache__ among the sources

import test_clients as base  # first: it sets what the clients read on import
from test_clients import TIMEOUT_S, URL, ServerTest

import numpy
import tritonclient.http as triton
from tokenizers import Tokenizer

setUpModule = base.setUpModule

MODELS = Path(__file__).resolve().parents[1] / "fixtures" / "models"
LENGTH = 256
PAD = 1
PREMISE = "A ferry runs to the island every morning."
HYPOTHESIS = "This text is about travel."


class TensorNamesTest(ServerTest):
    @classmethod
    def setUpClass(cls):
        address = urllib.parse.urlsplit(URL).netloc
        cls.client = triton.InferenceServerClient(
            address, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
        )
        cls.addClassCleanup(cls.client.close)

    def test_padded_int32_under_an_exports_names(self):
        names = [t["name"] for t in self.client.get_model_metadata("zst", "1")["inputs"]]
        self.assertEqual(names[:2], ["input__0", "input__1"])
        config = self.client.get_model_config("zst", "1")
        self.assertEqual(config["output"][0]["name"], "output__0")
        tokenizer = Tokenizer.from_file(str(MODELS / "tiny-roberta-nli" / "tokenizer.json"))
        tokenizer.no_padding()
        found = tokenizer.encode(PREMISE, HYPOTHESIS).ids
        ids = numpy.full((1, LENGTH), PAD, dtype=numpy.int32)
        ids[0, : len(found)] = found
        inputs = []
        for name, array in (("input__0", ids), ("input__1", (ids != PAD).astype(numpy.int32))):
            tensor = triton.InferInput(name, array.shape, "INT32")
            inputs.append(tensor.set_data_from_numpy(array, binary_data=False))
        output = triton.InferRequestedOutput("output__0", binary_data=False)
        answer = self.client.infer("zst", inputs, model_version="1", outputs=[output])
        logits = answer.as_numpy("output__0")
        self.assertEqual((logits.shape, logits.dtype), ((1, 3), numpy.float32))
        expected = self.post("/predict", {"inputs": [PREMISE, HYPOTHESIS], "raw_scores": True})
        expected = {entry["label"]: entry["score"] for entry in expected}
        # In fp32 ONNX Runtime runs it, where padding may change the order of sums.
        for label, logit in zip(("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), logits[0]):
            self.assertAlmostEqual(float(logit), expected[label], delta=1e-5)

    def test_text_in_and_a_numbered_output(self):
        text = "what causes rust"
        tensor = triton.InferInput("TEXT", [1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([text], dtype=numpy.object_))
        output = triton.InferRequestedOutput("3391", binary_data=False)
        found = self.client.infer("ensemble_model", [tensor], outputs=[output]).as_numpy("3391")
        expected = self.post("/embed", {"inputs": text, "model": "ensemble_model"})
        self.assert_same_bits(found, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
