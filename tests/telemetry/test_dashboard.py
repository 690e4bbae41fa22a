"""The Grafana dashboard and the alert rules, with Prometheus and real servers.

    TEST_KIVU=target/debug/kivu TEST_BUNDLE=.kivu/bundles/minilm TEST_PROMETHEUS=FOLDER \
      python tests/telemetry/test_dashboard.py
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from test_otlp import Server

sys.path.append(str(Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy/grafana"
DASHBOARD = json.loads((GRAFANA / "dashboard.json").read_text())
ALERTS = (GRAFANA / "alerts.yml").read_text()
TESTS = Path(__file__).with_name("alerts.test.yml").read_text()
RUNBOOKS = (ROOT / "docs/troubleshooting.md").read_text()
PROGRAMS = Path(os.environ["TEST_PROMETHEUS"])
BUNDLE = Path(os.environ["TEST_BUNDLE"]).resolve()
METRIC = re.compile(r"\bkivu_\w+")
# Functions and jobs record these, which Prometheus does not scrape.
UNSCRAPED = {
    "kivu_cold_starts_total", "kivu_cold_start_seconds", "kivu_rows_total", "kivu_failed_rows_total",
    "kivu_job_rows_per_second", "kivu_job_seconds_left",
}
WAIT_S = 60


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries():
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def substituted(query):
    return query.replace("$__rate_interval", "1m").replace("$job", "kivu").replace("$instance", ".*")


def expressions():
    """The alerts' expressions."""
    return [" ".join(found.split()) for found in re.findall(r"expr: \|?\s*(.*?)\n +(?:for|labels):", ALERTS, re.S)]


def base(name):
    return re.sub(r"_(bucket|sum|count)$", "", name)


def recorded():
    """All metrics that the sources name."""
    files = [*(ROOT / "telemetry/src").glob("*.rs"), ROOT / "src/model/gauges.rs", ROOT / "http/src/service/app.rs"]
    return {name for file in files for name in re.findall(r'"(kivu_\w+)"', file.read_text())}


class Structure(unittest.TestCase):
    def test_panels_are_complete(self):
        numbers = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))
        self.assertIsNone(DASHBOARD["id"])
        for panel in panels():
            with self.subTest(panel["title"]):
                self.assertTrue(panel["title"] and panel["description"].endswith("."))
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
                self.assertEqual({source["uid"] for source in sources}, {"${datasource}"})
                references = [target["refId"] for target in panel["targets"]]
                self.assertEqual(len(references), len(set(references)))

    def test_panels_do_not_overlap(self):
        cells = set()
        for panel in DASHBOARD["panels"]:
            at = panel["gridPos"]
            own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            self.assertFalse(cells & own, panel["title"])
            cells |= own

    def test_every_metric_is_recorded_and_shown(self):
        shown = {name for _, query in queries() for name in METRIC.findall(query)}
        self.assertEqual({base(name) for name in shown}, recorded() - UNSCRAPED)
        self.assertLessEqual({base(name) for name in METRIC.findall(" ".join(expressions()))}, recorded())

    def test_queries_select_the_chosen_servers(self):
        for title, query in queries():
            selectors = re.findall(r"\{(.*?)\}", query)
            self.assertTrue(selectors and all('job=~"$job",instance=~"$instance"' in found for found in selectors), title)

    def test_alerts_have_a_severity_a_runbook_and_tests(self):
        rules = re.split(r"- alert: ", ALERTS)[1:]
        self.assertEqual(len(rules), len(expressions()))
        for rule in rules:
            name = rule.split()[0]
            with self.subTest(name):
                self.assertRegex(rule, r"severity: (critical|warning)\n")
                self.assertRegex(rule, r"summary: .+\n +description: .+\n +runbook: docs/troubleshooting.md#" + name.lower())
                self.assertIn(f"### {name}\n", RUNBOOKS)
                tests = re.split(r"- alertname: ", TESTS)[1:]
                fires = {"exp_alerts" in test for test in tests if test.split()[0] == name}
                self.assertEqual(fires, {True, False})

    def test_promtool_accepts_the_rules_and_their_tests(self):
        for command in (["check", "rules", GRAFANA / "alerts.yml"], ["test", "rules", Path(__file__).with_name("alerts.test.yml")]):
            done = subprocess.run([PROGRAMS / "promtool", *command], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


CONFIG = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ['{rules}']
scrape_configs:
  - {{ job_name: kivu, static_configs: [{{ targets: {targets} }}] }}
"""


class Prometheus:
    """A Prometheus that scrapes servers."""

    def __init__(self, folder, servers):
        targets = json.dumps([server.url.removeprefix("http://") for server in servers])
        config = Path(folder, "prometheus.yml")
        config.write_text(CONFIG.format(rules=GRAFANA / "alerts.yml", targets=targets))
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self.url = f"http://{address}"
        self.log = open(Path(folder, "log"), "w+")
        self.process = subprocess.Popen(
            [PROGRAMS / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def query(self, expression):
        """A query's series; `AssertionError` for one that Prometheus refuses."""
        data = urllib.parse.urlencode({"query": expression}).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query", data, timeout=10) as response:
                return json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def is_ready(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/-/ready", timeout=10).status == 200
        return False


def wait(what, is_there):
    """Waits for a condition's value."""
    end = time.monotonic() + WAIT_S
    while not (found := is_there()):
        if time.monotonic() > end:
            raise AssertionError(f"expected {what() if callable(what) else what} within {WAIT_S} s")
        time.sleep(0.1)
    return found


def make_models(folder):
    """Three models in a configuration, the last of which cannot be loaded; returns their size in bytes."""
    names = ("one", "two", "broken")
    for name in names:
        shutil.copytree(BUNDLE, folder / name)
    size = sum(file.stat().st_size for file in (folder / "one").iterdir())
    weights = max((folder / "broken").iterdir(), key=lambda file: file.stat().st_size)
    weights.write_bytes(bytes(weights.stat().st_size))
    models = ", ".join(f'{{ path = "{folder / name}", name = "{name}" }}' for name in names)
    (folder / "kivu.toml").write_text(f"models = [{models}]\n")
    return size


@contextlib.contextmanager
def held(server):
    """A request that stays in progress, since its body does."""
    def is_at(count):
        return lambda: f"\nkivu_requests_in_progress {count}\n" in server.send("/metrics")[1]

    wait("no request in progress", is_at(0))
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/embed")
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", "100")
    connection.endheaders(b"{")
    try:
        wait("a request in progress", is_at(1))
        yield
    finally:
        connection.close()
    wait("no request in progress", is_at(0))


class Live(unittest.TestCase):
    def setUp(self):
        stack = self.enterContext(contextlib.ExitStack())
        self.folder = stack.enter_context(tempfile.TemporaryDirectory())
        size = make_models(Path(self.folder))
        # Nobody listens there.
        fleet = f"http://127.0.0.1:{free_ports(1)[0]}"
        # Memory for one model at a time.
        self.models = stack.enter_context(Server(
            "", ("--config", f"{self.folder}/kivu.toml"), KIVU_LOAD="on-demand", KIVU_MAX_MEMORY=str(size * 3 // 2),
        ))
        self.forwarding = stack.enter_context(Server(
            "", KIVU_LIMITS__REQUESTS="1", KIVU_FLEET__URLS=fleet, KIVU_FLEET__POLICY="auto", KIVU_FLEET__TIMEOUT_MS="1000",
        ))
        self.prometheus = stack.enter_context(Prometheus(self.folder, (self.models, self.forwarding)))

    def load(self):
        """Requests of every kind; returns their statuses."""
        statuses = [self.models.send(f"/models/{name}", {"inputs": "a"})[0] for name in ("one", "two", "broken", "none", "one")]
        statuses.append(self.models.send("/models/one", {"inputs": 7})[0])
        # Long texts go to the fleet, and run here after it has failed.
        statuses += [self.forwarding.embed("long " * 400) for _ in range(4)]
        with held(self.forwarding):
            statuses.append(self.forwarding.embed())
        return statuses

    def test_every_panel_has_data_and_every_alert_can_be_evaluated(self):
        prometheus = self.prometheus
        wait("Prometheus", prometheus.is_ready)
        wait("both servers", lambda: [one["value"][1] for one in prometheus.query("up")] == ["1", "1"])
        self.assertEqual(self.load(), [200, 200, 503, 404, 200, 422, 200, 200, 200, 200, 429])
        # Rates need a value before and after, of each server.
        loaded = time.time()
        wait("the first values", lambda: float(prometheus.query("min(timestamp(kivu_requests_total))")[0]["value"][1]) > loaded)
        self.load()
        empty = set(queries())

        def have_data():
            for title, query in list(empty):
                # Quantiles of nothing are NaN.
                if any(one["value"][1] != "NaN" for one in prometheus.query(substituted(query))):
                    empty.discard((title, query))
            return not empty

        wait(lambda: f"data for {sorted(empty)}", have_data)
        for expression in expressions():
            prometheus.query(expression)

        def value(query):
            return float(prometheus.query(query)[0]["value"][1])

        self.assertGreaterEqual(value('sum(kivu_errors_total{status="429"})'), 1)
        self.assertGreaterEqual(value("sum(kivu_failed_loads_total)"), 1)
        self.assertGreaterEqual(value("sum(kivu_unloads_total)"), 2)
        self.assertEqual(value("max(kivu_requests_limit)"), 512)
        found = wait("a failed load's alert", lambda: prometheus.query('ALERTS{alertname="KivuModelLoadFailed", alertstate="firing"}'))
        self.assertEqual(found[0]["metric"]["severity"], "warning")


if __name__ == "__main__":
    unittest.main(verbosity=2)
