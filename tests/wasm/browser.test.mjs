// Uses the npm package `kivuml-wasm` in Chromium: in a page, in a worker, again without the server's files, and with bad input.
//
//     TEST_BUNDLES=FOLDER TEST_URL=http://127.0.0.1:8080 TEST_WASM=target/wasm TEST_CHROMIUM=PROGRAM \
//       node tests/wasm/browser.test.mjs

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { withMaximum } from "./memory.mjs";

const { TEST_BUNDLES: BUNDLES, TEST_CHROMIUM: CHROMIUM, TEST_WASM } = process.env;
const URL_OF_SERVER = process.env.TEST_URL.replace(/\/$/, "");
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PACKAGE = path.resolve(ROOT, TEST_WASM);
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".wasm": "application/wasm" };
const TEXTS = ["The ferry leaves at seven.", "猫 🐈", "A cat sat on the mat."];

const PAGE = `<!doctype html><script type="module">
import { load } from "/package/index.js";
import { instructionSet } from "/package/native.js";
const report = (found) => fetch("/report", { method: "POST", body: JSON.stringify(found) });
try {
  const texts = ${JSON.stringify(TEXTS)};
  const vectors = async (bundle) => {
    const model = await load(bundle);
    const found = await model.encode(texts, { normalize: true });
    model.close();
    return found.map((vector) => Array.from(vector));
  };
  const minilm = await vectors("/bundles/minilm");
  const table = await vectors(new URL("/bundles/vectors-static/", location.href));
  await fetch("/offline", { method: "POST" });
  const offline = await vectors("/bundles/minilm");
  const cache = await caches.open("kivuml");
  for (const request of await cache.keys()) {
    if (request.url.includes("weights.bin?")) await cache.put(request, new Response("damaged"));
  }
  await fetch("/online", { method: "POST" });
  const repaired = await vectors("/bundles/minilm");
  const worker = new Worker("/worker.js", { type: "module" });
  worker.postMessage(texts);
  const inWorker = await new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = reject;
  });
  const missing = await load("/bundles/nothing").then(() => "", ({ name, message }) => name + ": " + message);
  await report({ minilm, table, offline, repaired, inWorker, missing, instructions: instructionSet() });
} catch (error) {
  await report({ error: String(error?.stack ?? error) });
}
</script>`;

const WORKER = `import { load } from "/package/index.js";
onmessage = async ({ data }) => {
  const model = await load("/bundles/minilm");
  postMessage((await model.encode(data, { normalize: true })).map((vector) => Array.from(vector)));
};`;

/** Bad input, with a module whose memory is smaller than the weights. */
const BAD = `<!doctype html><script type="module">
import { load } from "/package/index.js";
const report = (found) => fetch("/report", { method: "POST", body: JSON.stringify(found) });
const failure = (call) => call.then(() => "none", ({ name, message }) => name + ": " + message);
const contents = async (name) => [name, await (await fetch("/bundles/vectors-static/" + name)).arrayBuffer()];
try {
  const files = Object.fromEntries(await Promise.all(["manifest.toml", "model.onnx", "ranges.bin", "tokenizer.pieces", "weights.bin"].map(contents)));
  const memory = await failure(load("/bundles/minilm", { module: "/limited.wasm" }));
  const model = await load(files);
  const truncated = await failure(load({ ...files, "weights.bin": files["weights.bin"].slice(0, 100) }));
  const interrupted = await failure(load("/interrupted/vectors-static"));
  const other = await failure(load("/bundles/translate-en-pt"));
  const empty = await failure(model.encode(["a", ""]));
  const last = model.encode("a");
  model.close();
  const closed = await failure(model.encode("a"));
  await report({ memory, truncated, interrupted, other, empty, last: await failure(last), closed });
} catch (error) {
  await report({ error: String(error?.stack ?? error) });
}
</script>`;

/** Searches on the page of the documentation site, and again after a reload without a connection. */
const SEARCHING = `<!doctype html><iframe src="/search/"></iframe><script type="module">
const report = (found) => fetch("/report", { method: "POST", body: JSON.stringify(found) });
const frame = document.querySelector("iframe");
const loaded = () => new Promise((resolve) => (frame.onload = resolve));
const search = async (query) => {
  const page = frame.contentDocument;
  page.querySelector("input").value = query;
  page.querySelector("form").requestSubmit();
  const status = page.querySelector("output");
  while (/…$|^$/.test(status.value)) await new Promise((resolve) => setTimeout(resolve, 20));
  return { status: status.value, found: Array.from(page.querySelectorAll("li"), (item) => item.textContent) };
};
try {
  if (frame.contentDocument?.readyState !== "complete" || frame.contentDocument.URL === "about:blank") await loaded();
  const first = await search("When does the boat go?");
  await fetch("/offline", { method: "POST" });
  const reloaded = loaded();
  frame.contentWindow.location.reload();
  await reloaded;
  await report({ first, offline: await search("gardening") });
} catch (error) {
  await report({ error: String(error?.stack ?? error) });
}
</script>`;

/** Serves the pages, and resolves to their report. */
async function serve(run) {
  let isOffline = false;
  const requests = [];
  const { promise, resolve } = deferred();
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    const answer = (status, type, body) => response.writeHead(status, { "content-type": type }).end(body);
    if (request.method === "POST") {
      if (pathname === "/report") resolve(JSON.parse(Buffer.concat(await all(request)).toString()));
      else isOffline = pathname === "/offline";
      return answer(204, "text/plain", "");
    }
    const page = { "/": PAGE, "/bad": BAD, "/searching": SEARCHING }[pathname];
    if (page) return answer(200, "text/html; charset=utf-8", page);
    if (pathname === "/worker.js") return answer(200, "text/javascript; charset=utf-8", WORKER);
    if (pathname === "/limited.wasm") {
      const module = readFileSync(path.join(PACKAGE, "kivuml-relaxed.wasm"));
      return answer(200, "application/wasm", withMaximum(module, 384));
    }
    const [, root, ...rest] = pathname.split("/");
    const file = root === "search" ? ofSite(rest) : path.join({ package: PACKAGE, bundles: BUNDLES, interrupted: BUNDLES }[root] ?? "/nothing", ...rest);
    if (root === "bundles") requests.push(rest.join("/"));
    if (root !== "package" && isOffline) return request.socket.destroy();
    if (!existsSync(file)) return answer(404, "text/plain", "");
    if (root === "interrupted" && rest.at(-1) === "weights.bin") {
      response.writeHead(200, { "content-length": 1000 });
      return response.write("interrupted", () => request.socket.destroy());
    }
    answer(200, TYPES[path.extname(file)] ?? "application/octet-stream", readFileSync(file));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  try {
    return await run(`http://127.0.0.1:${server.address().port}/`, promise, requests);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** The server's vectors, as numbers in `f32`. */
async function served(model) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ inputs: TEXTS, model }) };
  const vectors = await (await fetch(`${URL_OF_SERVER}/embed`, options)).json();
  return vectors.map((vector) => vector.map(Math.fround));
}

/** A file of the page that searches. */
function ofSite([name, ...rest]) {
  const folder = { package: PACKAGE, model: path.join(BUNDLES, "minilm") }[name];
  return folder ? path.join(folder, ...rest) : path.join(ROOT, "packaging/site/search", name || "index.html");
}

/** Opens a page in a new browser, and resolves to its report and to the requests for bundles. */
async function reported(page) {
  const profile = mkdtempSync(path.join(tmpdir(), "kivuml-chromium-"));
  try {
    return await serve(async (url, report, requests) => {
      const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", `--user-data-dir=${profile}`];
      // In a process group, whose processes end together.
      const browser = spawn(CHROMIUM, [...flags, url + page], { stdio: "ignore", detached: true });
      const ended = once(browser, "exit").then(([code]) => ({ error: `Chromium ended with ${code}` }));
      try {
        return { ...(await Promise.race([report, ended])), requests: [...requests] };
      } finally {
        process.kill(-browser.pid, "SIGKILL");
      }
    });
  } finally {
    rmSync(profile, { recursive: true, force: true, maxRetries: 20 });
  }
}

function deferred() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  return made;
}

async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

test("models run in Chromium, and without a connection after the first load", { timeout: 120_000 }, async () => {
  const found = await reported("");
  assert.equal(found.error, undefined);
  assert.match(found.instructions, /^relaxed-/);
  for (const [name, model] of [["minilm", "minilm"], ["table", "vectors-static"]]) {
    assert.deepEqual(found[name], await served(model), `${model} as in the server`);
  }
  assert.deepEqual(found.offline, found.minilm);
  assert.deepEqual(found.repaired, found.minilm);
  assert.deepEqual(found.inWorker, found.minilm);
  assert.match(found.missing, /^UnknownModelError: expected a bundle's file at `http:.*\/bundles\/nothing\/manifest\.toml`, but found the status 404$/);
  const count = (file) => found.requests.filter((name) => name === file).length;
  // Once for the first load, and once for the damaged copy.
  assert.equal(count("minilm/weights.bin"), 2);
  assert.equal(count("minilm/tokenizer.json"), 0, "the compiled form is enough");
});

test("the documentation site's search runs in the browser, and without a connection after the first load", { timeout: 120_000 }, async () => {
  const { error, first, offline } = await reported("searching");
  assert.equal(error, undefined);
  assert.match(first.status, /^[\d.]+ ms for the query$/);
  assert.match(first.found[0], /^The ferry to the island leaves at seven/);
  assert.match(offline.found[0], /^Tomatoes need at least six hours of sun a day\./);
  assert.equal(offline.found.length, 3);
});

test("bad input has the server's words in Chromium", { timeout: 120_000 }, async () => {
  const found = await reported("bad");
  assert.equal(found.error, undefined);
  for (const [name, message] of Object.entries({
    memory: /^TooLargeError: the memory cannot grow further; use a smaller model, or fewer and shorter texts$/,
    truncated: /^ModelError: expected `weights\.bin` to have \d+ bytes, but found 100; the bundle is damaged: build or fetch it again$/,
    interrupted: /^UnavailableError: cannot fetch `http:.*\/interrupted\/vectors-static\/weights\.bin`$/,
    other: /^ConfigError: expected a bundle for the native engine, but found that `translate-en-pt` is for ONNX Runtime; build it with `--engine native`$/,
    empty: /^InvalidError: expected a text in `texts\[1\]`, but found an empty one$/,
    last: /^none$/,
    closed: /^ClosedError: expected an open model, but `vectors-static` is closed; load it again$/,
  })) {
    assert.match(found[name], message, name);
  }
});
