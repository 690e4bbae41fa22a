"""Measures what costs a model with experts its neighbours in int8: the rounding itself, or other experts.

    python benches/experts.py

Rounds the weights and inputs of tests/fixtures/models/tiny-nomic-moe as the native engine does, in fp32 arithmetic, and
compares the vectors of the build's sample texts with those in fp32. The router is in fp32, as in bundles. Needs what
tests/fixtures/make_nomic_moe.py needs; one thread takes three minutes.
"""

import os
import sys
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/fixtures"))
sys.dont_write_bytecode = True

import torch
from make_nomic_moe import EXPERTS, HIDDEN, INNER, MODELS, POSITIONS, TOP, NomicMoe
from make_jina_v3 import read_tokenizer
from safetensors.torch import load_file
from torch.nn import functional

NEIGHBOURS = 10
# Factors for the router's weights: a trained router is more certain than a random one.
CERTAINTIES = [1, 2, 4, 8]


def rounded_weights(weight):
    """Integers from -127 to 127, with a scale per output."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (weight / scale).round() * scale


def rounded_inputs(value):
    """Integers from 0 to 255, with a scale and a minimum per token; zero is among the values."""
    least, most = value.amin(-1, keepdim=True).clamp(max=0), value.amax(-1, keepdim=True).clamp(min=0)
    scale = ((most - least) / 255).clamp(min=1e-30)
    return ((value - least) / scale).round() * scale + least


class Rounded(NomicMoe):
    """The model with its layers, its experts or both rounded, and each token's experts."""

    def __init__(self, weights, certainty, layers=True, experts=True, choices=None):
        super().__init__(weights)
        self.certainty, self.rounds_layers, self.rounds_experts = certainty, layers, experts
        # The experts of another run, in place of the router's, and those of this run.
        self.given, self.choices, self.gaps = choices, [], []

    def product(self, value, weight, is_rounded):
        return rounded_inputs(value) @ rounded_weights(weight).T if is_rounded else value @ weight.T

    def linear(self, name, value):
        product = self.product(value, self.weights[f"{name}.weight"], self.rounds_layers)
        return product + self.weights[f"{name}.bias"]

    def experts(self, name, value):
        rows = value.reshape(-1, HIDDEN)
        gates = (rows @ self.weights[f"{name}.router.layer.weight"].T * self.certainty).softmax(-1)
        order = gates.sort(-1, descending=True)
        self.gaps.append(order.values[:, TOP - 1] - order.values[:, TOP])
        chosen = order.indices[:, :TOP] if self.given is None else self.given[len(self.choices)]
        self.choices.append(chosen)
        first = self.weights[f"{name}.experts.mlp.w1"].view(EXPERTS, INNER, HIDDEN)
        second = self.weights[f"{name}.experts.mlp.w2"].view(EXPERTS, INNER, HIDDEN)
        out = torch.zeros_like(rows)
        for expert in range(EXPERTS):
            places = (chosen == expert).any(-1).nonzero().flatten()
            raised = functional.gelu(self.product(rows[places], first[expert], self.rounds_experts))
            lowered = self.product(raised, second[expert].T, self.rounds_experts)
            out[places] += gates[places, expert, None] * lowered
        return (out + self.weights[f"{name}.experts.bias"]).view(value.shape)

    def vectors(self, texts):
        return torch.stack([functional.normalize(self({"input_ids": ids})[0].mean(0), dim=0) for ids in texts])


def neighbours(vectors):
    """Each text's nearest others."""
    cosines = vectors @ vectors.T
    return cosines.fill_diagonal_(-1).topk(NEIGHBOURS, -1).indices.tolist()


def recall(found, expected):
    kept = [len({*own} & {*other}) for own, other in zip(neighbours(found), neighbours(expected))]
    return sum(kept) / (NEIGHBOURS * len(kept))


def flips(found, expected):
    """The share of a layer's tokens that pass other experts."""
    pairs = list(zip(found, expected))
    changed = sum(int((own.sort(-1).values != other.sort(-1).values).any(-1).sum()) for own, other in pairs)
    return changed / sum(len(own) for own, _ in pairs)


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    folder = MODELS / "tiny-nomic-moe"
    tokenizer = read_tokenizer(folder)
    lines = (ROOT / "compiler/src/sentences.txt").read_text().splitlines()
    encode = lambda text: tokenizer(text, truncation=True, max_length=POSITIONS, return_tensors="pt")["input_ids"]
    texts = [encode(line) for line in lines if line.strip()]
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    print("router | int8 | recall@10 | other experts | lowest cosine")
    for certainty in CERTAINTIES:
        exact = Rounded(weights, certainty, layers=False, experts=False)
        expected = exact.vectors(texts)
        print(f"{certainty} x: median of the gap to the next expert's weight {torch.cat(exact.gaps).median():.4f}")
        for name, options in {
            "all": {},
            "all, with the experts of fp32": {"choices": exact.choices},
            "layers": {"experts": False},
            "experts": {"layers": False},
        }.items():
            model = Rounded(weights, certainty, **options)
            found = model.vectors(texts)
            figures = recall(found, expected), flips(model.choices, exact.choices), (found * expected).sum(-1).min()
            print(f"{certainty} x | {name} | {figures[0]:.1%} | {figures[1]:.1%} | {figures[2]:.5f}", flush=True)


if __name__ == "__main__":
    main()
