"""Ollama's client and a server that loads models on demand, at first without any model.

    TEST_URL=http://127.0.0.1:8080 python tests/frameworks/test_on_demand.py
"""

import datetime
import os
import unittest

import ollama

MODEL = "tests/tiny-bert"


class OnDemand(unittest.TestCase):
    def setUp(self):
        self.client = ollama.Client(host=os.environ["TEST_URL"])

    def running(self):
        return {model.model: model for model in self.client.ps().models}

    def test_a_model_is_pulled_used_and_leaves(self):
        self.assertEqual(self.client.list().models, [])
        progress = list(self.client.pull(MODEL, stream=True))
        self.assertEqual((progress[0].status, progress[-1].status), ("pulling manifest", "success"))
        downloads = [line for line in progress if line.total]
        self.assertTrue(downloads)
        self.assertEqual(downloads[-1].completed, downloads[-1].total)
        self.assertEqual(self.client.pull(MODEL).status, "success", "it is there")
        self.assertEqual(len(self.client.list().models), 1)
        self.assertEqual(self.client.show(MODEL).capabilities, ["embedding"])
        self.assertEqual(self.running(), {}, "nothing is loaded before the first request")

        first = self.client.embed(model=MODEL, input="hello", keep_alive=-1)
        self.assertGreater(first.load_duration, 0)
        [name] = self.running()
        model = self.running()[name]
        self.assertEqual((model.size_vram, model.expires_at.year, model.details.family), (0, 9999, "bert"))
        self.assertGreater(model.size, 0)

        again = self.client.embed(model=MODEL, input="hello", keep_alive="10m")
        self.assertEqual((again.load_duration, again.embeddings), (0, first.embeddings))
        expires = self.running()[name].expires_at
        left = expires - datetime.datetime.now(datetime.timezone.utc)
        self.assertTrue(datetime.timedelta(minutes=9) < left <= datetime.timedelta(minutes=10), left)

        self.client.embeddings(model=MODEL, prompt="hello", keep_alive=0)
        self.assertEqual(self.running(), {})

    def test_a_model_that_does_not_exist_is_an_error(self):
        with self.assertRaises(ollama.ResponseError):
            list(self.client.pull("tests/missing", stream=True))
        with self.assertRaises(ollama.ResponseError):
            self.client.pull("/etc/passwd")


if __name__ == "__main__":
    unittest.main(verbosity=2)
