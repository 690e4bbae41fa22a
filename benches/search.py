"""Measures search against its baselines and writes the figures to a JSON file: late interaction against numpy, and all
kinds of vectors of bge-m3 from one run against single kinds.

    .kivu/figures/bin/python benches/search.py KIVU LABORATORY FOLDER --json .kivu/search.json

FOLDER is for models with random weights in the shape of bge-m3, which are built on the first run; `--layers 2` makes
small ones. Both sides of a ratio are measured in turns, in one run.
"""

import os

# One thread, as Kivu scores the documents of a request.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import argparse
import json
import pathlib
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
import zipfile

import numpy

ROOT = pathlib.Path(__file__).parents[1]
TINY = ROOT / "tests/fixtures/models/tiny-bge-m3"
# A query and documents of ColBERT.
QUERY, DOCUMENTS, TOKENS, WIDTH = 32, 100, range(40, 180), 128
TURNS = 200
# Few positions, since each build reads 300 texts in fp32.
HIDDEN, INNER, HEADS, POSITIONS = 1024, 4096, 16, 66


def figure(name, value, baseline, unit, against):
    return {"name": name, "value": value, "baseline": baseline, "unit": unit, "against": against}


def milliseconds(work):
    times = []
    for _ in range(TURNS):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def late_interaction(laboratory):
    """The scores of documents, against the faster of two ways to compute them in numpy."""
    random = numpy.random.default_rng(0)

    def vectors(count):
        found = random.standard_normal((count, WIDTH), dtype=numpy.float32)
        return found / numpy.linalg.norm(found, axis=1, keepdims=True)

    query, documents = vectors(QUERY), [vectors(random.integers(TOKENS.start, TOKENS.stop)) for _ in range(DOCUMENTS)]
    starts = numpy.cumsum([0, *map(len, documents)])[:-1]
    joined = numpy.concatenate(documents)

    def one_by_one():
        return [(query @ document.T).max(axis=1).sum() for document in documents]

    def at_once():
        return numpy.maximum.reduceat(query @ joined.T, starts, axis=1).sum(axis=0)

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([query.tolist(), [document.tolist() for document in documents]], file)
        file.flush()
        found = measured(laboratory, "late", file.name)
    for expected in (one_by_one(), at_once()):
        difference = numpy.abs(numpy.array(found["scores"]) - expected).max()
        assert difference < 1e-4, f"expected the scores of numpy, but found a difference of {difference}"
    baseline = min(milliseconds(one_by_one), milliseconds(at_once))
    name = f"late interaction of a query of {QUERY} tokens with {DOCUMENTS} documents of 110 tokens, on one thread"
    return figure(name, found["ms"], baseline, "ms", "numpy")


def measured(laboratory, *arguments):
    output = subprocess.run([laboratory, *map(str, arguments)], check=True, stdout=subprocess.PIPE)
    return json.loads(output.stdout)


class Noise:
    """Random numbers: slices of one list, since making all weights would take minutes."""

    def __init__(self):
        self.random = numpy.random.default_rng(0)
        self.values = (self.random.standard_normal(1 << 22) * 0.02).astype(numpy.float16)

    def of(self, *shape):
        return numpy.resize(numpy.roll(self.values, self.random.integers(self.values.size)), shape)


def weights(noise, layers, vocabulary):
    """The weights of XLM-RoBERTa."""

    def linear(name, outputs, inputs):
        yield f"{name}.weight", noise.of(outputs, inputs)
        yield f"{name}.bias", noise.of(outputs)

    def norm(name):
        yield f"{name}.weight", numpy.ones(HIDDEN, numpy.float16)
        yield f"{name}.bias", numpy.zeros(HIDDEN, numpy.float16)

    for table, rows in (("word", vocabulary), ("position", POSITIONS), ("token_type", 1)):
        yield f"embeddings.{table}_embeddings.weight", noise.of(rows, HIDDEN)
    yield from norm("embeddings.LayerNorm")
    for layer in range(layers):
        place = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from linear(f"{place}.attention.self.{part}", HIDDEN, HIDDEN)
        yield from linear(f"{place}.attention.output.dense", HIDDEN, HIDDEN)
        yield from norm(f"{place}.attention.output.LayerNorm")
        yield from linear(f"{place}.intermediate.dense", INNER, HIDDEN)
        yield from linear(f"{place}.output.dense", HIDDEN, INNER)
        yield from norm(f"{place}.output.LayerNorm")


def write_safetensors(path, tensors):
    header, position = {}, 0
    for name, tensor in tensors.items():
        offsets = [position, position + tensor.nbytes]
        header[name] = {"dtype": "F16", "shape": tensor.shape, "data_offsets": offsets}
        position = offsets[1]
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def write_checkpoint(path, tensors):
    """Writes a checkpoint as `torch.save` does, without torch."""
    fakes = {"torch": types.ModuleType("torch"), "torch._utils": types.ModuleType("torch._utils")}

    class HalfStorage:
        __module__ = "torch"

    HalfStorage.__qualname__ = "HalfStorage"

    def _rebuild_tensor_v2():
        pass

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    fakes["torch"].HalfStorage, fakes["torch._utils"]._rebuild_tensor_v2 = HalfStorage, _rebuild_tensor_v2

    class Storage:
        def __init__(self, key, count):
            self.id = ("storage", HalfStorage, key, "cpu", count)

    class Tensor:
        def __init__(self, key, values):
            strides = tuple(stride // values.itemsize for stride in values.strides)
            self.arguments = (Storage(key, values.size), 0, values.shape, strides, False, {})

        def __reduce__(self):
            return _rebuild_tensor_v2, self.arguments

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            return thing.id if isinstance(thing, Storage) else None

    known = {name: sys.modules.get(name) for name in fakes}
    sys.modules.update(fakes)
    try:
        with zipfile.ZipFile(path, "w") as archive:
            with archive.open("archive/data.pkl", "w") as file:
                Pickler(file, 2).dump({name: Tensor(str(key), values) for key, (name, values) in enumerate(tensors.items())})
            for key, values in enumerate(tensors.values()):
                archive.writestr(f"archive/data/{key}", values.tobytes())
            archive.writestr("archive/version", "3\n")
    finally:
        for name, module in known.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})


def write_models(folder, layers):
    """The files of a model with all kinds of vectors, and of one with dense vectors only."""
    noise, vocabulary = Noise(), json.loads((TINY / "config.json").read_text())["vocab_size"]
    whole, dense = folder / "all", folder / "dense"
    shutil.copytree(TINY, whole, dirs_exist_ok=True)
    config = json.loads((TINY / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "max_position_embeddings": POSITIONS,
        "num_attention_heads": HEADS, "num_hidden_layers": layers,
    }  # fmt: skip
    (whole / "config.json").write_text(json.dumps(config))
    pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True}
    (whole / "1_Pooling/config.json").write_text(json.dumps(pooling))
    tokenizer = json.loads((TINY / "tokenizer_config.json").read_text())
    (whole / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"model_max_length": POSITIONS - 2}))
    write_safetensors(whole / "model.safetensors", dict(weights(noise, layers, vocabulary)))
    shutil.copytree(whole, dense, dirs_exist_ok=True, copy_function=link)
    for name, outputs in (("colbert_linear", HIDDEN), ("sparse_linear", 1)):
        head = {"weight": noise.of(outputs, HIDDEN), "bias": noise.of(outputs)}
        write_checkpoint(whole / f"{name}.pt", head)
        (dense / f"{name}.pt").unlink()


def link(source, target):
    pathlib.Path(target).unlink(missing_ok=True)
    os.link(source, target)


def build(kivu, folder, layers):
    """Bundles of both models. Their outputs are meaningless, so that their quality has no floor."""
    bundles = [folder / f"bundle-{name}" for name in ("all", "dense")]
    missing = [bundle for bundle in bundles if not (bundle / "manifest.toml").is_file()]
    if missing:
        write_models(folder, layers)
    for bundle in missing:
        name = bundle.name.removeprefix("bundle-")
        recipe = folder / f"{name}.toml"
        floor = "mean_cosine = 0\nworst_cosine = 0\nneighbours = 0\nterms = 0\nscore_difference = 1\n"
        recipe.write_text(f"name = '{name}'\ntask = 'feature-extraction'\n[source]\nfolder = '{name}'\n[quality]\n{floor}")
        subprocess.run([kivu, "build", recipe, "--out", bundle], check=True)
        shutil.rmtree(folder / name)
    return bundles


def kinds(kivu, laboratory, folder, layers):
    """All kinds of vectors from one run."""
    found = measured(laboratory, "kinds", *build(kivu, folder / f"{layers}-layers", layers))
    name = f"dense, sparse and multi-vectors of a text in the shape of bge-m3, {layers} layers"
    yield figure(name, found["all"], found["dense"], "ms", "dense vectors of the same encoder without other heads")
    yield figure("the same", found["all"], found["apart"], "ms", "three requests, one for each kind")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kivu", type=pathlib.Path)
    parser.add_argument("laboratory", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    figures = [late_interaction(arguments.laboratory)]
    figures += kinds(arguments.kivu, arguments.laboratory, arguments.folder, arguments.layers)
    for found in figures:
        ratio = found["value"] / found["baseline"]
        print(f"{found['name']}: {found['value']:.2f} ms, {ratio:.2f} × {found['baseline']:.2f} ms of {found['against']}")
    arguments.json.write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
