"""References for models whose code is in their repositories, as described, or in the authors' packages."""

import json
from pathlib import Path

import torch
import transformers
from kinds import JINA_V5
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

# Of models; `reference.py` changes it.
PRECISION = {"dtype": torch.float32}
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/models"


def read(path):
    return json.loads(path.read_text())


def jina_v5(folder, name):
    """jina-embeddings-v5-text, with the adapter of its first task."""
    from safetensors.torch import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import InputModule

    class Transformer(InputModule):
        @classmethod
        def load(cls, folder):
            return cls(Path(folder))

        def __init__(self, folder):
            super().__init__()
            settings = read(folder / "config.json")
            [task, *_] = settings["task_names"]
            base = JINA_V5[name]
            own = ("architectures", "auto_map", "model_type", "task_names")
            config = getattr(transformers, f"{base}Config")(**{key: value for key, value in settings.items() if key not in own})
            self.model = getattr(transformers, f"{base}Model").from_pretrained(folder, config=config, **PRECISION).eval()
            self.add_adapter(Path("adapters", task), folder)
            # `AutoTokenizer` of version 5 makes another one from the vocabulary.
            self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            self.limit = min(self.tokenizer.model_max_length, config.max_position_embeddings)

        def add_adapter(self, adapter, folder):
            settings, made = [read(root / adapter / "adapter_config.json") for root in (folder, FIXTURES / name)]
            known = ("r", "lora_alpha", "use_rslora")
            if any(settings.get(key) != made.get(key) for key in {*settings, *made}.difference(known)):
                raise ValueError("a setting that only PEFT reads")
            scale = settings["lora_alpha"] / settings["r"] ** (0.5 if settings["use_rslora"] else 1)
            matrices = load_file(folder / adapter / "adapter_model.safetensors")
            made = load_file(FIXTURES / name / adapter / "adapter_model.safetensors")
            if {key: matrix.shape for key, matrix in matrices.items()} != {key: matrix.shape for key, matrix in made.items()}:
                raise ValueError("matrices that PEFT does not find")
            for key in matrices:
                module = self.model.get_submodule(key.removeprefix("base_model.model.").partition(".lora_")[0])
                if ".lora_A." in key:
                    module.weight += scale * matrices[key.replace(".lora_A.", ".lora_B.")].float() @ matrices[key].float()

        def preprocess(self, inputs, prompt=None, **options):
            texts = [f"{prompt or ''}{text}" for text in inputs]
            return dict(self.tokenizer(texts, truncation=True, max_length=self.limit, return_tensors="pt"))

        def forward(self, features, **options):
            rows = self.model(features["input_ids"], features["attention_mask"]).last_hidden_state
            # The texts come one by one, without padding.
            features["sentence_embedding"] = torch.nn.functional.normalize(rows[:, -1])
            return features

        def save(self, *arguments, **options):
            pass

    return SentenceTransformer._load_with_module_classes(folder, {"custom_st.Transformer": Transformer}, device="cpu")


class PairRanker:
    """A ranker that reads a pair as the tokens of one text, for models that name its class or none."""

    def __init__(self, folder, kind=AutoModelForCausalLM):
        [name, *_] = read(Path(folder, "config.json")).get("architectures") or [kind.__name__]
        if not name.endswith(kind.__name__.removeprefix("AutoModel")):
            raise ValueError(f"code for another class than {name}")
        self.words = AutoTokenizer.from_pretrained(folder)
        self.model = kind.from_pretrained(folder, **PRECISION).eval()
        self.limit = min(self.words.model_max_length, self.model.config.max_position_embeddings)

    def ids(self, text, longest=None):
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        return self.words(text, add_special_tokens=False, **cut)["input_ids"]

    def pair(self, first, second, longest):
        """Both with the second cut, as by `prepare_for_model`."""
        over = max(len(first) + len(second) - longest, 0)
        if over >= len(second):
            over = 0
        return first + (second[over:] if self.words.truncation_side == "left" else second[: len(second) - over])

    def logits(self, ids):
        return self.model(torch.tensor([ids])).logits[0]


class MxbaiRerankV2(PairRanker):
    """As in the package mxbai-rerank."""

    BEFORE = (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    )
    TASK = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each query-document pair, "
        "carefully analyze the semantic relationship between them, then provide your binary relevance judgment (0 for not "
        "relevant, 1 for relevant).\nRelevance:"
    )
    AFTER = "<|im_end|>\n<|im_start|>assistant\n"

    def score(self, query, text):
        separator = self.ids("\n")
        before, after = self.ids(self.BEFORE), separator + self.ids(self.TASK) + self.ids(self.AFTER)
        longest = self.limit - len(before) - len(after)
        first = self.ids(f"query: {query}", longest * 3 // 4)
        second = self.ids(f"document: {text}", longest - len(first))
        logits = self.logits(before + self.pair(first, separator + second, longest) + after)[-1]
        yes, no = self.ids("1")[0], self.ids("0")[0]
        return float(logits[yes] - logits[no])


class GemmaRanker(PairRanker):
    """As in the package FlagEmbedding, for texts up to the model's limit."""

    TASK = (
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a prediction "
        "of either 'Yes' or 'No'."
    )

    def score(self, query, text):
        separator, task = self.ids("\n"), self.ids(self.TASK)
        outer = len(separator) + len(task)
        longest = self.limit - 2 * outer
        first, second = self.ids(f"A: {query}", longest * 3 // 4), self.ids(f"B: {text}", longest)
        start = self.words.bos_token_id
        before = [start] if start is not None and start != self.words.pad_token_id else []
        ids = self.pair(before + first, separator + second, longest + outer) + separator + task
        return float(self.logits(ids)[-1, self.ids("Yes")[0]])


class QwenRanker(PairRanker):
    """As on the cards of Qwen3-Reranker."""

    BEFORE = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note "
        'that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    TASK = "Given a web search query, retrieve relevant passages that answer the query"
    AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

    def text(self, query, text):
        return f"<Instruct>: {self.TASK}\n<Query>: {query}\n<Document>: {text}"

    def score(self, query, text):
        before, after = self.ids(self.BEFORE), self.ids(self.AFTER)
        body = self.ids(self.text(query, text), self.limit - len(before) - len(after))
        logits = self.logits(before + body + after)[-1]
        yes, no = self.words.convert_tokens_to_ids(["yes", "no"])
        return float(logits[yes] - logits[no])


class QwenClassifier(QwenRanker):
    """The same with a label head, cut as by the authors."""

    def __init__(self, folder):
        super().__init__(folder, AutoModelForSequenceClassification)

    def score(self, query, text):
        ids, after = self.ids(f"{self.BEFORE}{self.text(query, text)}{self.AFTER}"), self.ids(self.AFTER)
        ids = ids if len(ids) <= self.limit else ids[: self.limit - len(after)] + after
        return float(self.logits(ids)[0])


RANKERS = {
    "tiny-mxbai-rerank-base-v2": MxbaiRerankV2, "tiny-bge-reranker-v2-gemma": GemmaRanker,
    "tiny-qwen3-rank": QwenRanker, "tiny-qwen3-reranker-0.6b-seq-cls": QwenClassifier,
}
