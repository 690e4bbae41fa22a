#!/usr/bin/env python3
"""Tests of the page at `/` in a headless browser.

    TEST_URL=http://127.0.0.1:8080 TEST_CHROMIUM=/usr/bin/chromium python tests/page/test_page.py

TEST_URL is a server of the models in models/, TEST_CHROMIUM the path of Chromium. TEST_LOCKED_URL is a server that
requires the key TEST_KEY. With TEST_SCREENSHOTS, screenshots of each task are written to that folder. With TEST_PYTHON,
a Python with the clients, the code on the page is executed.
"""

import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

URL = os.environ["TEST_URL"].rstrip("/")
LOCKED_URL = os.environ.get("TEST_LOCKED_URL")
KEY = os.environ.get("TEST_KEY")
SCREENSHOTS = os.environ.get("TEST_SCREENSHOTS")
TIMEOUT_MS = 20_000
MAX_BYTES = 60_000
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
# Roles of controls; each control needs an accessible name.
CONTROLS = {
    "button", "checkbox", "combobox", "DisclosureTriangle", "link", "listbox", "option", "radio", "searchbox", "slider",
    "switch", "tab", "textbox",
}

expect.set_options(timeout=TIMEOUT_MS)


def get(path):
    with urllib.request.urlopen(f"{URL}/{path}") as answer:
        return json.load(answer)


MODELS = {model["name"]: model for model in get("models")["models"]}
ROUTES = sum(len(methods) for methods in get("openapi.json")["paths"].values())


def post(path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}/{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def of_task(task, has_labels=None):
    """The name of a model for a task, with or without labels of its own; skips the test if there is none."""
    for name, model in MODELS.items():
        if model["task"] == task and has_labels in (None, "labels" in model):
            return name
    raise unittest.SkipTest(f"skipped: no model for {task} is served")


def with_vectors(*kinds):
    """The name of a model with these kinds of vectors and no others; skips the test if there is none."""
    for name, model in MODELS.items():
        if model["task"] == "feature-extraction" and set(model["outputs"]) == set(kinds):
            return name
    raise unittest.SkipTest(f"skipped: no model with {kinds} vectors is served")


class Gateway(ThreadingHTTPServer):
    """A proxy that serves the server below a stage, like API Gateway."""

    daemon_threads = True

    def __init__(self, stage):
        super().__init__(("127.0.0.1", 0), GatewayHandler)
        self.stage = stage
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}{self.stage}"


class GatewayHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.removeprefix(self.server.stage)
        if path == self.path:
            return self.reply(403, {}, b'{"message":"Missing Authentication Token"}')
        connection = http.client.HTTPConnection(urlsplit(URL).netloc)
        connection.request(self.command, path or "/", body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = {name: value for name, value in answer.getheaders() if name not in ("content-length", "date")}
        return self.reply(answer.status, kept, content)

    def reply(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = forward

    def log_message(self, *_):
        pass


def setUpModule():
    global BROWSER
    playwright = sync_playwright().start()
    unittest.addModuleCleanup(playwright.stop)
    BROWSER = playwright.chromium.launch(executable_path=os.environ["TEST_CHROMIUM"], args=["--no-sandbox", "--disable-gpu"])
    unittest.addModuleCleanup(BROWSER.close)


class PageTest(unittest.TestCase):
    """Each test gets a new page, which may not log errors or send requests to other hosts."""

    screen = DESKTOP
    name = "desktop"

    def setUp(self):
        self.complaints, self.hosts, self.expected = [], set(), []
        self.context = BROWSER.new_context(**self.screen)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def tearDown(self):
        self.context.close()

    def open(self, model=None, url=None):
        url = url or URL + "/"
        self.page.goto(url + (f"#{model}" if model else ""))
        if model:
            expect(self.page.get_by_role("radio", name=model, exact=False).and_(
                self.page.locator(":checked"))).to_have_count(1)

    def press_run(self):
        self.page.get_by_role("button", name="Run", exact=True).click()

    def settle(self):
        """Waits for result, durations and tokens, then checks the page."""
        page = self.page
        # An earlier result is shown until then.
        expect(page.locator("#run")).not_to_have_attribute("aria-busy", "true")
        expect(page.get_by_role("status").first).to_contain_text("answered in")
        expect(page.locator("#token-count")).to_contain_text("tokens")
        expect(page.get_by_role("heading", name="Time")).to_be_visible()
        self.assert_sound()

    def assert_sound(self):
        page = self.page
        unexpected = [text for text in self.complaints if not any(part in text for part in self.expected)]
        self.assertEqual(unexpected, [])
        self.assertLessEqual(self.hosts, {urlsplit(page.url).netloc, ""})
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        self.assertLessEqual(wide, 0, "the page must not scroll horizontally")
        nodes = self.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        roles = [
            (node["role"]["value"], node.get("name", {}).get("value", "").strip())
            for node in nodes
            if not node["ignored"] and "role" in node
        ]
        self.assertEqual([role for role, name in roles if role in CONTROLS and not name], [], "controls without a name")
        self.assertGreater(sum(role in CONTROLS for role, _ in roles), 4)

    def picture(self, what):
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{SCREENSHOTS}/{self.name}-{what}.png", full_page=True)


class OnADesktop(PageTest):
    def test_models_are_listed(self):
        self.open()
        for name in MODELS:
            expect(self.page.get_by_role("radio", name=name, exact=False).first).to_be_attached()
        self.assert_sound()
        self.picture("start")

    def test_similar_texts_are_highlighted(self):
        model = of_task("feature-extraction")
        self.open(model)
        texts = ["a cat sleeps", "a kitten is asleep", "the stock market fell"]
        box = self.page.get_by_role("textbox", name="Texts, one per line")
        box.fill("\n".join(texts))
        box.press("Control+Enter")
        self.settle()
        rows = self.page.get_by_role("table").first.locator("tbody tr")
        shown = [[float(cell) for cell in row.locator("td").all_inner_texts()] for row in rows.all()]
        expected = post("similarity", {"model": model, "inputs": {"source_sentence": texts[0], "sentences": texts}})
        for cell, cosine in zip(shown[0], expected):
            self.assertAlmostEqual(cell, cosine, delta=0.006)
        self.assertGreater(shown[0][1], shown[0][2])
        box.fill("only one text")
        self.press_run()
        expect(self.page.get_by_role("img", name="a vector of")).to_be_visible()
        box.fill("\n".join(["How do I reset my password?", "I cannot log in to my account", "The invoice is wrong",
                            "I was charged twice this month", "What is the weather like at the lake?"]))
        box.press("Control+Enter")
        expect(self.page.locator("table.heat tbody tr")).to_have_count(5)
        self.settle()
        self.picture("similarity")

    def test_sentiment_has_bars(self):
        model = of_task("text-classification")
        self.open()
        self.page.get_by_text(model, exact=False).first.click()
        self.press_run()
        self.settle()
        texts = self.page.get_by_role("textbox", name="Texts, one per line").input_value().split("\n")
        answers = post(f"models/{model}", {"inputs": texts})
        shown = self.page.locator(".scored")
        expect(shown).to_have_count(len(texts))
        for index, answer in enumerate(answers):
            best = shown.nth(index).get_by_role("listitem").first
            expect(best).to_contain_text(answer[0]["label"])
            expect(best).to_contain_text(f"{answer[0]['score'] * 100:.1f} %")
        self.picture("sentiment")

    def test_entities_are_marked(self):
        name = of_task("token-classification", has_labels=True)
        self.open(name)
        text = "👩🏽 Sarah lives in London 🇵🇹 now"
        self.page.get_by_role("textbox", name="Texts, one per line").fill(text)
        self.press_run()
        self.settle()
        entities = post(f"models/{name}", {"inputs": text, "parameters": {"aggregation_strategy": "first"}})
        marks = self.page.locator("#result mark")
        expect(marks).to_have_count(len(entities))
        for place, entity in enumerate(entities):
            expect(marks.nth(place)).to_have_text(text[entity["start"] : entity["end"]] + entity["entity_group"])
        unmarked = self.page.locator("#result p").evaluate(
            "p => { p = p.cloneNode(true); p.querySelectorAll('.label').forEach(label => label.remove()); return p.textContent; }"
        )
        self.assertEqual(unmarked, text)
        self.picture("entities")
        # The redacted text beside the original.
        text = "Sarah lives in London, sarah@example.org"
        self.page.get_by_role("textbox", name="Texts, one per line").fill(text)
        self.page.get_by_role("checkbox", name="Show the redacted text").check()
        self.settle()
        parameters = {"aggregation_strategy": "first", "redact": True, "redact_style": "number", "patterns": "all"}
        redacted = post(f"models/{name}", {"inputs": text, "parameters": parameters})
        self.assertIn("[EMAIL_ADDRESS_1]", redacted["text"])
        cells = self.page.locator("#result td")
        expect(cells).to_have_count(2)
        expect(cells.nth(1)).to_have_text(redacted["text"])
        expect(marks).to_have_count(len(redacted["entities"]))
        self.picture("redacted")

    def test_entities_of_edited_labels_are_searched_again(self):
        name = of_task("token-classification", has_labels=False)
        self.open(name)
        page = self.page
        text = "Sarah lives in London now"
        page.get_by_role("textbox", name="Texts, one per line").fill(text)
        self.press_run()
        self.settle()
        marks = page.locator("#result mark")
        for change in [lambda: None, lambda: page.get_by_role("button", name="Remove label city").click()]:
            change()
            self.settle()
            labels = [item.inner_text().rstrip("×").strip() for item in page.locator("#labels li").all()]
            parameters = {"candidate_labels": labels}
            entities = post(f"models/{name}", {"inputs": text, "parameters": parameters})
            expect(marks).to_have_text([text[it["start"] : it["end"]] + it["entity_group"] for it in entities])
        self.picture("own-labels")

    def test_edited_labels_are_scored_again(self):
        self.open(of_task("zero-shot-classification"))
        page = self.page
        page.get_by_role("textbox", name="Texts, one per line").fill("The telescope saw a new galaxy.")
        self.press_run()
        self.settle()
        bars = page.locator(".scored").first.get_by_role("listitem")
        expect(bars).to_have_count(3)
        page.get_by_role("textbox", name="Labels").fill("astronomy, space")
        page.keyboard.press("Enter")
        expect(bars).to_have_count(4)
        expect(bars.first).to_contain_text("astronomy, space")
        page.get_by_role("button", name="Remove label cooking").click()
        expect(bars).to_have_count(3)
        self.assertEqual(page.evaluate("document.activeElement.getAttribute('aria-label')"), "Remove label politics")
        before = bars.first.inner_text()
        page.get_by_role("checkbox", name="Several labels may apply").check()
        expect(bars.first).not_to_have_text(before, use_inner_text=True)
        self.settle()
        self.picture("zero-shot")

    def test_texts_are_ranked(self):
        model = of_task("text-ranking")
        self.open(model)
        page = self.page
        page.get_by_role("textbox", name="Query").press("Enter")
        self.settle()
        texts = page.get_by_role("textbox", name="Texts, one per line").input_value().split("\n")
        query = page.get_by_role("textbox", name="Query").input_value()
        answer = post(f"models/{model}", {"inputs": {"query": query, "texts": texts}})
        shown = page.get_by_role("list", name="Texts, highest score first").locator("p").all_inner_texts()
        self.assertEqual(shown, [texts[rank["index"]] for rank in answer])
        self.picture("ranking")

    def test_weights_of_tokens_have_bars(self):
        model = with_vectors("sparse")
        self.open(model)
        expect(self.page.locator("#kind-field")).to_be_hidden()
        self.press_run()
        self.settle()
        texts = self.page.get_by_role("textbox", name="Texts, one per line").input_value().split("\n")
        self.assert_weights(post("embed_sparse", {"model": model, "inputs": texts, "words": True}))
        self.picture("sparse")

    def assert_weights(self, answers):
        shown = self.page.locator(".scored")
        expect(shown).to_have_count(len(answers))
        for index, weights in enumerate(answers):
            largest = sorted(weights, key=lambda weight: -weight["value"])[:20]
            bars = shown.nth(index).get_by_role("listitem")
            self.assertEqual([bar.locator("span").first.inner_text() for bar in bars.all()], [weight["word"] for weight in largest])
            self.assertEqual(bars.first.locator(".number").inner_text(), f"{largest[0]['value']:.3f}")
            expect(shown.nth(index)).to_contain_text(f"{len(weights)} weights")

    def assert_ranks(self, model):
        texts = self.page.get_by_role("textbox", name="Texts, one per line").input_value().split("\n")
        query = self.page.get_by_role("textbox", name="Query").input_value()
        answer = post("rerank", {"model": model, "query": query, "texts": texts})
        shown = self.page.get_by_role("list", name="Texts, highest score first")
        self.assertEqual(shown.locator("p").all_inner_texts(), [texts[rank["index"]] for rank in answer])
        self.assertEqual(shown.locator(".number").all_inner_texts(), [f"{rank['score']:.3f}" for rank in answer])

    def test_texts_are_ranked_by_late_interaction(self):
        model = with_vectors("multi_vector")
        self.open(model)
        self.press_run()
        self.settle()
        self.assert_ranks(model)
        self.picture("late-interaction")

    def test_the_kind_of_vectors_is_chosen(self):
        model = with_vectors("dense", "sparse", "multi_vector")
        self.open(model)
        box, kind = self.page.get_by_role("textbox", name="Texts, one per line"), self.page.get_by_role("combobox", name="Vectors")
        box.fill("a cat\na dog")
        self.press_run()
        self.settle()
        expect(self.page.locator("table.heat tbody tr")).to_have_count(2)
        kind.select_option("sparse")
        expect(self.page.locator("#result")).to_be_empty()
        box.fill("the cat and the dog")
        self.press_run()
        self.settle()
        self.assert_weights(post("embed_sparse", {"model": model, "inputs": "the cat and the dog", "words": True}))
        kind.select_option("multi_vector")
        self.press_run()
        self.settle()
        self.assert_ranks(model)
        self.picture("kinds")
        kind.select_option("dense")
        expect(box).to_have_value("a cat\na dog")
        expect(self.page.locator("#query-field")).to_be_hidden()

    def test_translation_is_side_by_side(self):
        model = of_task("translation")
        self.open(model)
        self.press_run()
        self.settle()
        texts = self.page.get_by_role("textbox", name="Texts, one per line").input_value().split("\n")
        expected = [answer["translation_text"] for answer in post(f"models/{model}", {"inputs": texts})]
        rows = self.page.locator("table.sides tbody tr")
        self.assertEqual([row.locator("td").all_inner_texts() for row in rows.all()], [list(p) for p in zip(texts, expected)])
        expect(self.page.locator("#tokens ul").first.locator("li").last).to_have_text("</s>")
        self.picture("translation")

    def test_tokens_are_those_of_the_tokenizer(self):
        model = of_task("feature-extraction")
        self.open(model)
        self.page.get_by_role("textbox", name="Texts, one per line").fill("unbelievable wörlds 🙂")
        self.press_run()
        self.settle()
        tokens = post("tokenize", {"model": model, "inputs": "unbelievable wörlds 🙂"})[0]
        shown = self.page.locator("#tokens li").all_inner_texts()
        self.assertEqual(shown, [token["text"] for token in tokens])

    def test_errors_are_shown(self):
        self.open(of_task("feature-extraction"))
        page = self.page
        page.get_by_role("textbox", name="Texts, one per line").fill("  \n ")
        self.press_run()
        expect(page.get_by_role("alert")).to_have_text("Enter a text.")
        self.assertEqual(page.evaluate("document.activeElement.id"), "texts")
        self.expected = ["413"]
        page.get_by_role("textbox", name="Texts, one per line").fill("a\n" * 1100)
        self.press_run()
        expect(page.get_by_role("alert")).to_contain_text("1024")
        page.get_by_role("textbox", name="Texts, one per line").fill("a\nb")
        self.press_run()
        expect(page.get_by_role("alert")).to_be_hidden()
        self.settle()

    def test_an_error_replaces_the_result(self):
        self.open(of_task("feature-extraction"))
        page = self.page
        self.press_run()
        self.settle()
        for text, message in (("", "Enter a text."), ("a\n" * 1100, "1024")):
            self.expected = ["413"]
            page.get_by_role("textbox", name="Texts, one per line").fill(text)
            self.press_run()
            expect(page.get_by_role("alert")).to_contain_text(message)
            expect(page.locator("#result")).to_be_empty()
            for part in ("#details", "#raw"):
                expect(page.locator(part)).to_be_hidden()
            page.get_by_role("textbox", name="Texts, one per line").fill("a")
            self.press_run()
            self.settle()

    def test_the_response_is_shown_and_copied_as_json(self):
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        model = of_task("feature-extraction")
        self.open(model)
        page = self.page
        page.get_by_role("textbox", name="Texts, one per line").fill("a cat")
        self.press_run()
        self.settle()
        page.get_by_text("Response as JSON").click()
        expected = post("embed", {"model": model, "inputs": ["a cat"]})
        # The text is made in an event after the click.
        expect(page.locator("#json")).not_to_be_empty()
        shown = page.locator("#json").inner_text()
        self.assertEqual(json.loads(shown), expected)
        page.get_by_role("button", name="Copy JSON").click()
        expect(page.locator("#json-copied")).to_have_text("Copied.")
        self.assertEqual(json.loads(page.evaluate("navigator.clipboard.readText()")), expected)
        self.assert_sound()
        self.picture("json")
        # An open response is that of the next request.
        page.get_by_role("textbox", name="Texts, one per line").fill("a dog")
        self.press_run()
        self.settle()
        expect(page.locator("#json")).not_to_have_text(shown)
        self.assertEqual(json.loads(page.locator("#json").inner_text()), post("embed", {"model": model, "inputs": ["a dog"]}))

    def test_times_on_this_machine_have_no_network(self):
        self.open(of_task("feature-extraction"))
        self.press_run()
        self.settle()
        expect(self.page.locator("#stages")).to_contain_text("Browser and connection")
        expect(self.page.locator("#stages")).not_to_contain_text("Network")

    def test_the_limits_of_zero_shot_by_vectors_are_said(self):
        for name, model in MODELS.items():
            if model["task"] == "zero-shot-classification":
                self.open(name)
                note = expect(self.page.locator("#task-note"))
                (note.to_contain_text if model["strategy"] == "embedding" else note.not_to_contain_text)("misses negation")

    def test_the_api_is_described(self):
        gateway = Gateway(stage="/prod")
        self.addCleanup(gateway.stop)
        for start, end in ((URL, "/"), (gateway.url, "/"), (gateway.url, "")):
            # Requests go to the page's own host only.
            self.hosts.clear()
            self.page.goto(start + end)
            self.page.get_by_role("link", name="API").click()
            expect(self.page.get_by_role("status")).to_have_text(f"{ROUTES} routes.")
            self.assertEqual(self.page.url, f"{start}/docs")
        route = self.page.locator("#embed")
        route.locator("summary").first.press("Enter")
        expect(route.get_by_role("heading", name="Request")).to_be_visible()
        expect(route.get_by_role("table", name="Request fields")).to_contain_text("truncation_direction")
        expect(route.get_by_role("table", name="Errors")).to_contain_text("error_type")
        expect(route.locator("pre").first).to_contain_text(f"curl {gateway.url}/embed -H")
        self.assert_sound()
        self.picture("docs")
        # Required fields come first, and no word of a type is broken.
        fields = route.get_by_role("table", name="Request fields").locator("tbody tr")
        expect(fields.first).to_contain_text("inputs")
        expect(fields.first).to_contain_text("required.")
        self.assertGreater(fields.first.locator("td").nth(1).bounding_box()["width"], 150)
        find = self.page.get_by_role("textbox", name="Find a route")
        for words, found in (("rerank", "rerank"), ("truncation_direction", "embed"), ("vocabulary", "embed_sparse"), ("OpenAI embeddings", "embeddings")):
            find.fill(words)
            expect(self.page.locator(f"#{found}")).to_be_visible()
            expect(self.page.locator("#health")).to_be_hidden()
        find.fill("nonsense")
        expect(self.page.get_by_role("status")).to_have_text("No route has all of these words.")
        self.hosts.clear()
        self.page.goto(f"{URL}/docs#embeddings")
        expect(self.page.locator("#embeddings").get_by_role("heading", name="Response")).to_be_visible()
        for route in self.page.locator(".route").all():
            route.evaluate("details => { details.open = true; }")
        expect(self.page.get_by_role("table", name="Errors")).to_have_count(ROUTES)
        self.assert_sound()

    def test_a_key_is_required_and_kept_in_the_tab_only(self):
        if not LOCKED_URL:
            self.skipTest("skipped: TEST_LOCKED_URL is not set")
        self.expected = ["401"]
        self.open(url=LOCKED_URL + "/")
        field = self.page.get_by_label("API key")
        expect(field).to_be_focused()
        self.picture("key")
        field.fill("wrong")
        field.press("Enter")
        expect(self.page.get_by_role("alert")).to_have_text("unknown key")
        field.fill(KEY)
        field.press("Enter")
        expect(self.page.locator("#ask")).to_be_visible()
        self.press_run()
        self.settle()
        expect(self.page.get_by_role("tabpanel")).to_contain_text("$API_KEY")
        self.assertNotIn(KEY, self.page.content())
        kept = self.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie.length]")
        self.assertEqual(kept, [0, 1, 0])
        self.page.reload()
        expect(self.page.locator("#ask")).to_be_visible()
        self.page.evaluate("document.getElementById('key').value = 'wrong'")
        self.press_run()
        expect(self.page.get_by_role("alert")).to_have_text("unknown key")
        self.assertEqual(self.page.evaluate("sessionStorage.length"), 0)
        self.page.reload()
        expect(field).to_have_value("")


class OnAnyScreen(PageTest):
    """What does not depend on the size of the screen."""

    def test_markup_in_texts_is_escaped(self):
        self.open(of_task("text-classification"))
        text = "<img src=x onerror=alert(1)> & 'quotes' $(ls) `a`"
        self.page.get_by_role("textbox", name="Texts, one per line").fill(text)
        self.press_run()
        self.settle()
        expect(self.page.locator(".scored .text")).to_have_text(text)
        self.assertEqual(self.page.locator("img").count(), 0)

    def test_the_shown_code_runs(self):
        tools = {"curl": [shutil.which("sh"), "-c"], "JavaScript": [shutil.which("node"), "--input-type=module", "-e"]}
        python = os.environ.get("TEST_PYTHON")
        codes = []
        for name, model in MODELS.items():
            self.open(name)
            takes_labels = model["task"] == "token-classification" and "labels" not in model
            if model["task"] != "zero-shot-classification" and not takes_labels:
                expect(self.page.locator("#labels-field")).to_be_hidden()
            texts = self.page.get_by_role("textbox", name="Texts, one per line")
            texts.fill(texts.input_value() + "\nIt's “odd”: $HOME \\n `a` 'b'")
            for tab in self.page.get_by_role("tab").all():
                tab.click()
                words = tab.inner_text()
                code = self.page.get_by_role("tabpanel").inner_text()
                tool = tools.get(words)
                if not tool and python:
                    codes.append(code)
                elif not tool or tool[0] is None:
                    print(f"skipped: no interpreter for {words}", file=sys.stderr)
                else:
                    with self.subTest(model=name, code=words):
                        self.assert_prints(self.run_code(*tool, code))
        self.assert_sound()
        if python:
            printed = json.loads(self.run_code(python, "-c", RUN_EACH, *codes))
            self.assertEqual(len(printed), len(codes))
            for code, output in zip(codes, printed):
                with self.subTest(code=code):
                    self.assert_prints(output)

    def run_code(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def assert_prints(self, output):
        self.assertNotIn('"error"', output)
        self.assertTrue(output.strip())

    def test_the_keyboard_is_enough(self):
        self.open()
        page = self.page
        expect(page.locator("#ask")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="API")).to_be_focused()
        page.keyboard.press("Tab")
        before = page.evaluate("document.activeElement.id")
        self.assertEqual(before, "model-0")
        if len(MODELS) > 1:
            page.keyboard.press("ArrowDown")
            self.assertEqual(page.evaluate("document.activeElement.id"), "model-1")
            page.keyboard.press("ArrowUp")
        page.keyboard.press("Tab")
        self.assertEqual(page.evaluate("document.activeElement.id"), "texts")
        page.keyboard.press("Control+Enter")
        self.settle()
        first, second = page.get_by_role("tab").all()[:2]
        first.focus()
        page.keyboard.press("ArrowRight")
        expect(second).to_be_focused()
        expect(second).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel")).to_contain_text("import")

    def test_code_is_copied(self):
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.open(of_task("feature-extraction"))
        self.page.get_by_role("button", name="Copy", exact=True).click()
        expect(self.page.locator("#copied")).to_have_text("Copied.")
        copied = self.page.evaluate("navigator.clipboard.readText()")
        self.assertEqual(copied, self.page.get_by_role("tabpanel").inner_text())

    def test_a_stage_in_the_path_is_kept(self):
        gateway = Gateway(stage="/prod")
        self.addCleanup(gateway.stop)
        for url in (gateway.url, gateway.url + "/"):
            self.open(of_task("feature-extraction"), url)
            self.press_run()
            self.settle()
            expect(self.page.get_by_role("tabpanel")).to_contain_text(f"{gateway.url}/embed")

    def test_examples_name_served_models(self):
        self.page.goto(f"{URL}/docs#task")
        examples = self.page.locator("#task")
        expect(examples.get_by_role("heading", name="Response")).to_be_visible()
        for name, model in MODELS.items():
            if next(other for other, its in MODELS.items() if its["task"] == model["task"]) == name and model["task"] != "token-classification":
                expect(examples).to_contain_text(f"/models/{name} ")
        self.page.goto(f"{URL}/docs#embeddings")
        self.page.reload()
        expect(self.page.locator("#embeddings pre").first).to_contain_text(f'"model":"{of_task("feature-extraction")}"')
        self.page.goto(f"{URL}/docs#embed")
        self.page.reload()
        has_both = any({"dense", "sparse"} <= set(model.get("outputs", {})) for model in MODELS.values())
        note = expect(self.page.locator("#embed"))
        (note.not_to_contain_text if has_both else note.to_contain_text)("this server has no such model")

    def test_the_page_is_small_and_strict(self):
        answer = self.page.goto(URL + "/")
        self.assertLessEqual(len(answer.body()), MAX_BYTES)
        policy = answer.headers["content-security-policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        # The first model's example is run.
        self.settle()
        loaded = self.page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertEqual(loaded, [f"{URL}/{path}" for path in ("models", "embed", "tokenize")])
        # The entry appears shortly after the paint. `wait_for_function` would evaluate text, which the policy forbids.
        painted, deadline = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime", time.monotonic() + 20
        while (paint := self.page.evaluate(painted)) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        print(f"page: {len(answer.body())} bytes, first paint after {paint:.0f} ms", file=sys.stderr)

    def test_the_page_adds_little_latency(self):
        self.open(of_task("feature-extraction"))
        self.page.get_by_role("textbox", name="Texts, one per line").fill("What is deep learning?")
        self.press_run()
        self.settle()
        shown = [self.page.evaluate(KEY_TO_ANSWER) for _ in range(15)]
        alone = [self.page.evaluate(CALL_ALONE) for _ in range(15)]
        shown, alone = statistics.median(shown), statistics.median(alone)
        print(f"one text: {shown:.1f} ms from key press to painted result, {alone:.1f} ms for the request alone", file=sys.stderr)
        self.assertLess(shown, alone + 2000, "the page delays the result")


# What each program prints; their packages take seconds to load.
RUN_EACH = """
import contextlib, io, json, sys
printed = []
for code in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {"__name__": "__main__"})
    printed.append(output.getvalue())
print(json.dumps(printed))
"""
# From the key press to the frame after the one that shows the result.
KEY_TO_ANSWER = """() => new Promise((resolve) => {
  const started = performance.now();
  const result = document.getElementById("result");
  new MutationObserver((_, observer) => {
    if (!result.children.length) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - started)));
  }).observe(result, { childList: true });
  document.getElementById("texts").dispatchEvent(
    new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true }));
})"""
CALL_ALONE = """async () => {
  const started = performance.now();
  const answer = await fetch("embed", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ inputs: ["What is deep learning?"] }),
  });
  await answer.json();
  return performance.now() - started;
}"""


class OnAPhone(OnADesktop):
    screen = PHONE
    name = "phone"


class InTheDark(PageTest):
    screen = {**DESKTOP, "color_scheme": "dark"}
    name = "dark"

    def test_it_is_dark(self):
        self.page.goto(URL + "/docs#embed")
        expect(self.page.locator("#embed").get_by_role("heading", name="Request")).to_be_visible()
        self.picture("docs")
        for task, what in (("feature-extraction", "similarity"), ("text-classification", "sentiment")):
            self.open(of_task(task))
            self.press_run()
            self.settle()
            colour = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
            self.assertLess(sum(int(part) for part in colour[4:-1].split(",")), 150)
            self.picture(what)


if __name__ == "__main__":
    started = time.monotonic()
    program = unittest.main(verbosity=2, exit=False)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(not program.result.wasSuccessful())
