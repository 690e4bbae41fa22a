"""Sends requests from a page of another origin in Chromium.

    python tests/deploy/browser.py CHROMIUM PORT URL KEY

The page is at http://localhost:PORT; the output is the status that it got from URL, or the error of the browser.
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from playwright.sync_api import sync_playwright

CHROMIUM, PORT, URL, KEY = sys.argv[1:]
# Headers of OpenAI's client and of requests with AWS signatures.
REQUEST = """([url, key]) => fetch(url, {method: "POST", body: JSON.stringify({input: "hello"}), headers: {
  authorization: `Bearer ${key}`, "content-type": "application/json", "x-stainless-lang": "js", "x-stainless-retry-count": "0",
  "x-amz-date": "20261123T000000Z"}}).then(response => `${response.status} ${response.headers.has("x-request-id")}`, String)"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    server = HTTPServer(("127.0.0.1", int(PORT)), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://localhost:{PORT}")
        print(page.evaluate(REQUEST, [URL, KEY]))
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main()
