"""Traces and metrics over OTLP, from `kivu serve` and from the function `api`, as a collector receives them.

    TEST_KIVU=target/debug/kivu TEST_BUNDLE=.kivu/bundles/minilm TEST_FUNCTION=target/debug/api \
      python tests/telemetry/test_otlp.py
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from collector import Collector

sys.path.append(str(Path(__file__).parents[1] / "lambda"))
from streaming import CompiledFunction, url_event  # noqa: E402

BUNDLE = Path(os.environ["TEST_BUNDLE"]).resolve()
NAME = BUNDLE.name
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
TEXT = "an unmistakable text"
STAGES = ["tokenization", "queue", "run", "response"]


def traceparent(sampled):
    return f"00-{TRACE}-{PARENT}-{'01' if sampled else '00'}"


class Server:
    """`kivu serve`, with its log in `log` once it has ended."""

    def __init__(self, url, arguments=(BUNDLE,), **variables):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "KIVU_PAGE": "false", **variables}
        self.process = subprocess.Popen(
            [os.environ["TEST_KIVU"], "serve", *arguments, "--listen", "127.0.0.1:0"],
            env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.url = line.split()[-1]
        self.log = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def send(self, path, body=None, headers=(), method=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json", **dict(headers)}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def embed(self, text=TEXT, headers=()):
        return self.send("/embed", {"inputs": [text, text]}, headers)[0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.log = self.process.stderr.read()
        return self.process.wait()


class Silent(ThreadingHTTPServer):
    """Accepts connections and answers with `status`, or never; notes the header `traceparent`."""

    daemon_threads = True

    def __init__(self, status=None):
        self.traces, self.ended, outer = [], threading.Event(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.traces.append((self.headers.get("traceparent"), self.headers.get("tracestate")))
                if status is None:
                    outer.ended.wait()
                self.send_response(status or 200)
                self.end_headers()

            do_POST = do_GET

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """Kivu ends while it waits."""


class Traces(unittest.TestCase):
    def test_a_request_is_a_span_with_its_stages(self):
        with Collector() as collector, Server(collector.url, OTEL_SERVICE_NAME="search", OTEL_RESOURCE_ATTRIBUTES="team=a%20b", OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20x") as server:
            headers = {"traceparent": traceparent(True), "tracestate": "a=1"}
            self.assertEqual(server.embed(headers=headers), 200)
            self.assertEqual(server.send(f"/models/{NAME}?secret={'x' * 9}", {"inputs": TEXT}, headers)[0], 200)
            self.assertEqual(server.send("/health?secret", None, headers)[0], 200)
            self.assertEqual(server.send(f"/{TEXT.replace(' ', '-')}", None, headers)[0], 404)
            self.assertEqual(server.stop(), 0)
            spans = collector.wait_for_spans(4)
            self.assertEqual(collector.malformed, [])
            embed, model, health, missing = sorted(collector.servers(), key=lambda span: span.start)
            self.assertEqual(collector.headers["authorization"], "Bearer x")
        self.assertEqual((embed.resource["service.name"], embed.resource["team"]), ("search", "a b"))
        self.assertEqual([span.name for span in (embed, model, health, missing)], ["POST /embed", "POST /models/{model}", "GET /health", "GET"])
        self.assertEqual({(span.trace, span.parent, span.state) for span in (embed, model, health, missing)}, {(TRACE, PARENT, "a=1")})
        tokens = embed.attributes.pop("kivu.tokens")
        self.assertGreater(tokens, 4)
        self.assertEqual(embed.attributes, {"http.request.method": "POST", "http.route": "/embed", "http.response.status_code": 200, "kivu.model": NAME, "kivu.texts": 2})
        self.assertEqual(model.attributes["kivu.tokens"] * 2, tokens)
        self.assertEqual(missing.attributes, {"http.request.method": "GET", "http.response.status_code": 404})
        children = collector.children(embed)
        self.assertEqual([child.name for child in children], STAGES)
        self.assertTrue(all(embed.start <= child.start <= child.end <= embed.end for child in children))
        self.assertTrue(all(before.end <= after.start for before, after in zip(children, children[1:])))
        self.assertEqual(children[2].attributes, {"kivu.backend": "native"})
        self.assertEqual((collector.children(health), [span.is_error for span in spans]), ([], [False] * len(spans)))
        for word in ("secret", "unmistakable"):
            self.assertFalse(any(word in span.text for span in spans), word)

    def test_sampling_respects_the_parent(self):
        for sampler, expected in (
            ({}, [True, False, True]),
            ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, [True, False, False]),
            ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, [False, False, False]),
        ):
            with self.subTest(**sampler), Collector() as collector, Server(collector.url, **sampler) as server:
                for path, headers in (
                    ("/health", {"traceparent": traceparent(True)}),
                    ("/info", {"traceparent": traceparent(False)}),
                    ("/models", {}),
                ):
                    self.assertEqual(server.send(path, None, headers)[0], 200)
                server.stop()
                routes = {span.attributes["http.route"] for span in collector.spans}
                self.assertEqual([route in routes for route in ("/health", "/info", "/models")], expected)
                self.assertEqual(collector.malformed, [])

    def test_a_share_of_traces_is_sampled(self):
        with Collector() as collector, Server(collector.url, OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0.5") as server:
            for number in range(64):
                server.send("/health")
            server.stop()
            # Outside of this once in 3 billion runs.
            self.assertTrue(10 <= len(collector.spans) <= 54, len(collector.spans))

    def test_an_error_of_the_server_is_an_error_of_its_span_and_the_fleet_gets_the_trace(self):
        with Collector() as collector, Silent(503) as fleet:
            variables = {"KIVU_FLEET__URLS": fleet.url, "KIVU_FLEET__POLICY": "fleet", "KIVU_FLEET__TIMEOUT_MS": "500"}
            with Server(collector.url, **variables) as server:
                before = len(fleet.traces)
                self.assertEqual(server.embed(headers={"traceparent": traceparent(True), "tracestate": "a=1"}), 503)
                self.assertEqual(server.send("/embed", {"inputs": 7})[0], 422)
                server.stop()
            failed, refused = sorted(collector.wait_for_spans(2) and collector.servers(), key=lambda span: span.start)
            self.assertTrue(failed.is_error)
            self.assertEqual((failed.attributes["http.response.status_code"], failed.attributes["error.type"]), (503, "503"))
            self.assertEqual((refused.is_error, "error.type" in refused.attributes), (False, False))
            traces = set(fleet.traces[before:])
            self.assertIn((f"00-{TRACE}-{failed.id}-01", "a=1"), traces)


class Metrics(unittest.TestCase):
    def test_metrics_are_the_ones_of_prometheus(self):
        with Collector() as collector, Server(collector.url) as server:
            server.embed()
            server.send("/missing")
            _, page = server.send("/metrics")
            server.stop()
            self.assertEqual(collector.malformed, [])
            self.assertEqual(collector.resource["service.name"], "kivu")
            found = collector.metrics
        lines = re.findall(r"^(\w+?)(?:\{(.*)\})? (\S+)$", page, re.M)
        self.assertGreater(len(lines), 20)
        compared = set()
        for name, labels, number in lines:
            labels = dict(re.findall(r'(\w+)="(.*?)"', labels))
            bound = labels.pop("le", None)
            base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in found else name
            point = found[base][tuple(sorted(labels.items()))]
            number = float(number)
            if base == "kivu_model_last_use_timestamp_seconds":
                self.assertGreaterEqual(point, number)
                continue
            if isinstance(point, tuple):
                count, total, counts, bounds = point
                at = len(bounds) if bound == "+Inf" else bound and bounds.index(float(bound))
                point = {"_bucket": sum(counts[: at + 1]) if bound else 0, "_sum": total, "_count": count}[name[len(base):]]
            # `GET /metrics` counts itself when it is over.
            own = name.startswith("kivu_request") or labels.get("status") == "2xx"
            if own and name != "kivu_request_seconds_sum":
                self.assertIn(point - number, (0, 1), name)
            elif not own:
                self.assertAlmostEqual(point, number, 6, name)
            compared.add(base)
        self.assertEqual(compared, set(found) - {"kivu_model_last_use_timestamp_seconds"})
        self.assertTrue({"kivu_requests_total", "kivu_tokens_total", "kivu_infer_seconds", "kivu_model_loaded"} <= compared)


class Failures(unittest.TestCase):
    def test_a_receiver_that_refuses_or_is_gone_is_logged_once(self):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            gone = f"http://127.0.0.1:{closed.getsockname()[1]}"
            with Collector(status=500) as collector:
                for url in (gone, collector.url):
                    with Server(url, OTEL_METRICS_EXPORTER="none", OTEL_BSP_SCHEDULE_DELAY="10") as server:
                        for number in range(20):
                            self.assertEqual(server.embed(), 200)
                        self.assertEqual(server.stop(), 0)
                        self.assertEqual(server.log.count("cannot be sent"), 1, server.log)
                self.assertGreater(collector.requests, 1)

    def test_a_receiver_that_never_answers_delays_neither_requests_nor_the_end(self):
        with Silent() as receiver, Server(receiver.url, OTEL_BSP_MAX_QUEUE_SIZE="8", OTEL_BSP_SCHEDULE_DELAY="1") as server:
            for number in range(50):
                self.assertEqual(server.embed(), 200)
            self.assertEqual(server.stop(), 0)

    def test_settings_that_are_not_supported_are_ignored_with_a_warning(self):
        unsupported = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_TRACES_EXPORTER": "otlp,console", "OTEL_TRACES_SAMPLER": "xray"}
        with Collector() as collector, Server(collector.url, **unsupported) as server:
            self.assertEqual(server.embed(), 200)
            self.assertEqual(server.stop(), 0)
            self.assertTrue(collector.requests)
            for name, value in unsupported.items():
                self.assertRegex(server.log, f"WARN.*ignored `{name}`: expected .* but found `{value.removeprefix('otlp,')}`")
        with Server("", OTEL_METRICS_EXPORTER="prometheus") as server:
            server.stop()
            self.assertIn("ignored `OTEL_METRICS_EXPORTER`", server.log)

    def test_a_disabled_sdk_sends_nothing(self):
        with Collector() as collector, Server(collector.url, OTEL_SDK_DISABLED="true") as server:
            server.embed()
            server.stop()
            self.assertEqual(collector.requests, 0)


class SlowRequests(unittest.TestCase):
    def test_slow_requests_are_logged_with_their_stages(self):
        with Server("", KIVU_SLOW_REQUEST_MS="1", KIVU_LOG="json") as server:
            # Some of these take a millisecond.
            for _ in range(5):
                server.send("/embed", {"inputs": [f"{TEXT} " * 50] * 20}, {"traceparent": traceparent(True)})
            server.stop()
        lines = [json.loads(line) for line in server.log.splitlines() if '"slow request"' in line]
        self.assertTrue(lines, server.log)
        line = lines[0]
        expected = {"level": "WARN", "method": "POST", "route": "/embed", "status": 200, "model": NAME, "texts": 20, "trace": TRACE}
        self.assertEqual({name: line.get(name) for name in expected}, expected)
        stages = [line[f"{stage}_ms"] for stage in STAGES]
        self.assertGreater(line["tokens"], 20)
        self.assertGreater(sum(stages), 0)
        self.assertGreaterEqual(line["ms"], 1)
        self.assertNotIn("unmistakable", server.log)

    def test_other_requests_are_not(self):
        with Server("", KIVU_SLOW_REQUEST_MS="3600000") as server:
            server.embed()
            server.stop()
        self.assertNotIn("slow request", server.log)
        with self.assertRaisesRegex(AssertionError, "slow_request_ms"):
            Server("", KIVU_SLOW_REQUEST_MS="0")


class Jobs(unittest.TestCase):
    """`kivu batch`, and batches of requests in `kivu serve`."""

    def run_job(self, collector, lines, *options, **variables):
        """A job's exit status and its spans."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name, "in.jsonl")
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        # Without the last export, nothing is sent within the test.
        timers = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
        variables = os.environ | timers | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} | variables
        command = [os.environ["TEST_KIVU"], "batch", file, Path(folder.name, "out.jsonl"), "--model", BUNDLE, *options]
        done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(collector.malformed, [])
        return done.returncode, collector.spans

    def test_a_job_is_a_span_and_its_rows_are_counted(self):
        with Collector() as collector:
            lines = [{"text": TEXT}, {"text": None}, {"text": TEXT}]
            status, (span,) = self.run_job(collector, lines, TRACEPARENT=traceparent(True), TRACESTATE="a=1")
            tokens = span.attributes.pop("kivu.tokens")
            self.assertEqual((status, span.name, span.is_error), (0, "batch job", False))
            self.assertEqual((span.trace, span.parent, span.state), (TRACE, PARENT, "a=1"))
            self.assertEqual(span.attributes, {"kivu.model": NAME, "kivu.task": "feature-extraction", "kivu.status": "finished", "kivu.rows": 3, "kivu.failed_rows": 1})
            self.assertEqual(span.resource["service.name"], "kivu")
            self.assertNotIn("unmistakable", span.text)
            counts = {name: collector.metrics[f"kivu_{name}_total"][()] for name in ("rows", "failed_rows", "tokens")}
            self.assertEqual(counts, {"rows": 3, "failed_rows": 1, "tokens": tokens})
            self.assertGreater(tokens, 4)

    def test_a_job_that_fails_is_an_error_and_sampling_is_respected(self):
        with Collector() as collector:
            status, (span,) = self.run_job(collector, [{"text": TEXT}], "--format", "parquet")
            self.assertEqual((status, span.attributes["kivu.status"], span.is_error, span.parent), (1, "failed", True, ""))
        with Collector() as collector:
            self.assertEqual(self.run_job(collector, [{"text": TEXT}], TRACEPARENT=traceparent(False)), (0, []))

    def test_a_receiver_that_never_answers_does_not_keep_a_job_from_ending(self):
        with Silent() as receiver, tempfile.TemporaryDirectory() as folder:
            Path(folder, "in.jsonl").write_text(json.dumps({"text": TEXT}))
            command = [os.environ["TEST_KIVU"], "batch", "in.jsonl", "out.jsonl", "--model", BUNDLE]
            subprocess.run(command, cwd=folder, env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}, capture_output=True, check=True)


@unittest.skipUnless(os.environ.get("TEST_FUNCTION"), "TEST_FUNCTION is not set")
class Lambda(unittest.TestCase):
    def setUp(self):
        self.variables = {"KIVU_MODELS": str(BUNDLE), "KIVU_AUTH__MODE": "none", "OTEL_RESOURCE_ATTRIBUTES": "team=a"}
        if library := os.environ.get("KIVU_ONNXRUNTIME"):
            self.variables["KIVU_ONNXRUNTIME"] = library
        self.x_ray = {"x-amzn-trace-id": f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={PARENT};Sampled=1"}

    def function(self, collector, name="api", **variables):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # Without a flush, nothing is sent within the test.
        timers = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
        variables = self.variables | timers | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url} | variables
        return CompiledFunction(Path(os.environ["TEST_FUNCTION"]).resolve().with_name(name), variables, folder.name)

    def test_each_invocation_sends_what_it_recorded(self):
        for mode in ("buffered", "streaming"):
            with self.subTest(mode), Collector() as collector, self.function(collector, RESPONSE_MODE=mode) as function:
                for number in (1, 2):
                    event = url_event("POST", "/embed", json.dumps({"inputs": TEXT}), self.x_ray)
                    self.assertEqual(function.next(event)[0], "response")
                    collector.wait_for_spans(number)
                    collector.wait("its metrics", lambda: collector.metrics.get("kivu_requests_total", {}).get(()) == number)
                first, _ = collector.servers()
                self.assertEqual((first.trace, first.parent, first.name), (TRACE, PARENT, "POST /embed"))
                self.assertEqual((first.resource["service.name"], first.resource["team"]), ("api", "a"))
                self.assertEqual([child.name for child in collector.children(first)], STAGES)
                self.assertEqual(collector.malformed, [])

    def test_the_batch_function_sends_before_its_response(self):
        event = json.loads((Path(__file__).parents[1] / "lambda/rows_redshift.json").read_text())
        with Collector() as collector, self.function(collector, name="batch", KIVU_BATCH__OUTPUT="out/", KIVU_BATCH__INPUT="in/") as function:
            _, _, body, _ = function.next(event)
            self.assertEqual(json.loads(body)["num_records"], 3)
            self.assertGreater(collector.metrics["kivu_tokens_total"][()], 0)
            self.assertEqual((collector.resource["service.name"], collector.malformed), ("api", []))

    def test_a_collector_that_never_answers_does_not_stop_invocations(self):
        with Silent() as collector, self.function(collector, OTEL_METRICS_EXPORTER="none") as function:
            for _ in range(2):
                event = url_event("POST", "/embed", json.dumps({"inputs": TEXT}), self.x_ray)
                self.assertEqual(function.next(event)[0], "response")


if __name__ == "__main__":
    unittest.main(verbosity=2)
