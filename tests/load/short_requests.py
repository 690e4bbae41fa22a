"""Measures how long short requests wait while the server processes a long one.

    python3 tests/load/short_requests.py KIVU BUNDLES [--seconds N] [--only TEXT]

Starts `kivu serve` with its default limits for a folder with the bundles of `make bundles`. For each long request, which
is repeated for a few seconds, measures short requests to `/embed` and `/health`, and compares their 99th percentile with
the one during `/embed` with `limits.texts` texts. The exit code is 0 if none is more than three times as long. Needs only
the standard library.
"""

import argparse
import http.client
import json
import sys
import threading
import time

from stalled import BODY_BYTES, Server

MAX_TEXTS = 1024
SENTENCE = "The cat sits on the mat with the dog in the garden. "
JSON = {"content-type": "application/json"}


def bodies():
    """Long requests, accepted and refused, by name: path and body. The first one is what others are compared with."""
    texts = [SENTENCE * 3] * MAX_TEXTS
    long = SENTENCE * (BODY_BYTES // len(SENTENCE) - 2)
    words = "word " * (BODY_BYTES // 5 - 100)
    yield "embed", "/embed", {"inputs": texts}
    yield "nothing", "/nowhere", {}
    yield "vertex, texts of one instance", "/vertex", {"instances": [{"inputs": texts}]}
    yield "vertex, one text each", "/vertex", {"instances": [{"inputs": text} for text in texts]}
    yield "vertex, texts times instances", "/vertex", {"instances": [{"inputs": ["a"] * MAX_TEXTS}] * 700}
    yield "one long text", "/embed", {"inputs": long}
    yield "one long text, refused", "/embed", {"inputs": long, "truncate": False}
    yield "token ids", "/embed", {"inputs": [[2000] * 500] * MAX_TEXTS}
    yield "too many texts", "/embed", {"inputs": ["a"] * 800_000}
    yield "late chunking by sentences", "/v1/embeddings", {"model": "minilm", "input": long, "late_chunking": "sentences"}
    yield "late chunking of a word", "/v1/embeddings", {"model": "minilm", "input": words, "late_chunking": "sentences"}
    yield "a million labels", "/models/zero-shot", {"inputs": "a", "parameters": {"candidate_labels": [f"{i}" for i in range(450_000)]}}
    yield "a million labels in a string", "/models/zero-shot", {"inputs": "a", "parameters": {"candidate_labels": "a," * 3_000_000}}
    yield "as many labels as texts", "/models/zero-shot", {"inputs": "a", "parameters": {"candidate_labels": [f"{i} " + 5000 * "b" for i in range(MAX_TEXTS)]}}
    yield "rerank", "/rerank", {"query": "cat", "texts": texts}
    yield "tokenize", "/tokenize", {"model": "minilm", "inputs": long[: BODY_BYTES // 10]}
    yield "tokenize, refused", "/tokenize", {"model": "minilm", "inputs": long}
    yield "one long sentence", "/translate", {"model": "translate-en-pt", "inputs": words}
    yield "many sentences", "/translate", {"model": "translate-en-pt", "inputs": long}
    yield "one long sentence of DeepL", "/v2/translate", {"text": [words], "target_lang": "pt", "source_lang": "en"}
    yield "KServe texts", "/v2/models/minilm/infer", {"inputs": [{"name": "TEXT", "shape": [MAX_TEXTS, 1], "datatype": "BYTES", "data": texts}]}
    yield "KServe inputs", "/v2/models/minilm/infer", {"inputs": [{"name": f"i{i}", "shape": [1], "datatype": "INT64", "data": [1]} for i in range(50_000)]}
    yield "nested lists", "/embed", {"inputs": [[[[[[1]]]]]] * 150_000}
    yield "unknown fields", "/embed", {"inputs": "a", **{f"field{i}": 1 for i in range(200_000)}}


def send(server, path, body, done, statuses):
    connection, data = http.client.HTTPConnection(*server.address, timeout=120), json.dumps(body).encode()
    while not done.is_set():
        connection.request("POST", path, data, JSON)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)


def short(server, method, path, body, until, found):
    connection = http.client.HTTPConnection(*server.address, timeout=120)
    while time.monotonic() < until:
        started = time.monotonic()
        connection.request(method, path, body, JSON)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
        found.append(1000 * (time.monotonic() - started))
        time.sleep(0.005)


def measure(server, path, body, seconds):
    """The statuses of a long request, and the 99th percentile of short ones meanwhile."""
    done, statuses, embed, health = threading.Event(), [], [], []
    until = time.monotonic() + seconds
    cat = json.dumps({"model": "minilm", "inputs": "a cat"}).encode()
    threads = [
        threading.Thread(target=short, args=(server, "POST", "/embed", cat, until, embed)),
        threading.Thread(target=short, args=(server, "GET", "/health", None, until, health)),
    ]
    long = threading.Thread(target=send, args=(server, path, body, done, statuses))
    long.start()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    done.set()
    long.join()
    p99 = lambda times: sorted(times)[int(0.99 * len(times))]
    return sorted(set(statuses)), len(statuses), p99(embed), p99(health)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kivu")
    parser.add_argument("bundles")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    server, failures, limits = Server(arguments.kivu, arguments.bundles), [], None
    print(f"{'long request':32} {'status':10} {'times':>5} {'embed p99':>10} {'health p99':>10}")
    for name, path, body in bodies():
        if limits and arguments.only not in name:
            continue
        statuses, times, *p99 = measure(server, path, body, arguments.seconds)
        limits = limits or [3 * each for each in p99]
        print(f"{name:32} {str(statuses):10} {times:5} {p99[0]:7.1f} ms {p99[1]:7.1f} ms", flush=True)
        if any(found > limit for found, limit in zip(p99, limits)):
            failures.append(name)
    server.process.terminate()
    server.process.wait(timeout=120)
    sys.exit(f"more than three times as long: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
