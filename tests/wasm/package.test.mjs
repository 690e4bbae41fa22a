// Uses the npm package `kivuml-wasm` in Node.js, next to a server with the same models.
//
//     TEST_BUNDLES=FOLDER TEST_URL=http://127.0.0.1:8080 TEST_WASM=target/wasm TEST_MODULE=kivuml.wasm \
//       node --expose-gc tests/wasm/package.test.mjs
//
// TEST_WASM has the package, whose module TEST_MODULE is used. The server serves TEST_BUNDLES.

import assert from "node:assert/strict";
import { once } from "node:events";
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import v8 from "node:v8";
import { Worker } from "node:worker_threads";

import { withMaximum } from "./memory.mjs";

const { TEST_BUNDLES: BUNDLES, TEST_MODULE, TEST_WASM } = process.env;
const URL_OF_SERVER = process.env.TEST_URL.replace(/\/$/, "");
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PACKAGE = path.resolve(ROOT, TEST_WASM);
const ENTRY = pathToFileURL(path.join(PACKAGE, "index.js")).href;
const MODULE = new URL(TEST_MODULE, ENTRY);
const IS_RELAXED = TEST_MODULE === "kivuml-relaxed.wasm";
// Later versions of Node.js have relaxed instructions without a flag.
if (IS_RELAXED && parseInt(process.versions.node) < 22) v8.setFlagsFromString("--experimental-wasm-relaxed-simd");
const kivuml = await import(ENTRY);
const { instructionSet, use } = await import(new URL("native.js", ENTRY).href);
use(MODULE);
const { load } = kivuml;
const TEXTS = ["The ferry leaves at seven.", "Der Zug nach Hamburg fährt um zwölf ab.", "A cat sat on the mat.", "猫 🐈", " "];
const PEOPLE = ["Ada Lovelace lived in London.", "Angela Merkel wurde in Hamburg geboren."];

const models = new Map();
/** A loaded model; the same one in all tests. */
function model(name) {
  if (!models.has(name)) models.set(name, load(path.join(BUNDLES, name)));
  return models.get(name);
}

async function served(route, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(URL_OF_SERVER + route, options);
  const found = await response.json();
  assert.equal(response.status, 200, JSON.stringify(found));
  return found;
}

/** The result of an async function's body in a worker, which has an instance of its own. */
async function inWorker(code, data) {
  const begin = `import { parentPort, workerData } from "node:worker_threads"; import { load } from ${JSON.stringify(ENTRY)};
    import { memory, use } from ${JSON.stringify(new URL("native.js", ENTRY).href)}; const { bundles, data } = workerData;
    const module = new URL(${JSON.stringify(MODULE.href)}); use(module);`;
  const source = `${begin} parentPort.postMessage(await (async () => { ${code} })());`;
  const url = new URL(`data:text/javascript,${encodeURIComponent(source)}`);
  const worker = new Worker(url, { workerData: { bundles: BUNDLES, data } });
  const ended = once(worker, "error").then(([error]) => Promise.reject(error));
  const [found] = await Promise.race([once(worker, "message"), ended]);
  await worker.terminate();
  return found;
}

/** Equal but for numbers, which differ by at most `tolerance`: the host's exponential function is another one. */
function near(found, expected, tolerance = 1e-6, place = "result") {
  if (typeof expected === "number") {
    const difference = Math.abs(Math.fround(found) - Math.fround(expected));
    assert.ok(difference <= tolerance, `${place}: ${found} is not ${expected}`);
  } else if (expected !== null && typeof expected === "object") {
    assert.deepEqual(Object.keys(found).sort(), Object.keys(expected).sort(), place);
    for (const key of Object.keys(expected)) near(found[key], expected[key], tolerance, `${place}.${key}`);
  } else {
    assert.equal(found, expected, place);
  }
}

/** A copy of a bundle, which `change` changes. */
function changed(name, change) {
  const folder = mkdtempSync(path.join(tmpdir(), "kivuml-wasm-"));
  after(() => rmSync(folder, { recursive: true }));
  cpSync(path.join(BUNDLES, name), folder, { recursive: true, dereference: true });
  change(folder);
  return folder;
}

after(async () => {
  for (const opened of models.values()) (await opened.catch(() => undefined))?.close();
});

test("the portable instructions have the server's bits", async () => {
  for (const name of ["minilm", "vectors-static"]) {
    const code = `use(module, "portable"); return (await load(bundles + "/${name}")).encode(data, { normalize: true });`;
    const expected = await served("/embed", { inputs: TEXTS, model: name });
    assert.deepEqual(await inWorker(code, TEXTS), expected.map((row) => Float32Array.from(row)), name);
  }
});

test("vectors have the server's bits", async () => {
  const texts = [...TEXTS, ...Array.from({ length: 60 }, (_, number) => `${"Text about many things. ".repeat(1 + (number % 9))} ${number}`)];
  for (const name of ["minilm", "vectors-static"]) {
    const found = await (await model(name)).encode(texts, { normalize: true });
    const expected = await served("/embed", { inputs: texts, model: name });
    assert.equal(instructionSet().startsWith("relaxed-"), IS_RELAXED);
    assert.deepEqual(found, expected.map((row) => Float32Array.from(row)), name);
    assert.ok(found.every((vector) => vector instanceof Float32Array));
  }
  const stored = await (await model("minilm")).encode(TEXTS, { precision: "int8", dimensions: 64 });
  const expected = await served("/embed", { inputs: TEXTS, model: "minilm", output_dtype: "int8", dimensions: 64 });
  assert.deepEqual(stored.map((row) => [...row]), expected);
  const splade = await model("vectors-splade");
  const sparse = await splade.sparse(TEXTS.slice(0, 2), { maxActiveDims: 5 });
  const weights = await served("/embed_sparse", { inputs: TEXTS.slice(0, 2), model: "vectors-splade", max_active_dims: 5 });
  near(sparse.map((text) => [...text]), weights.map((text) => text.map(({ index, value }) => [index, value])));
  const colbert = await (await model("vectors-colbert")).multiVectors(TEXTS);
  near(colbert.map((text) => text.map((vector) => [...vector])), await served("/embed_all", { inputs: TEXTS, model: "vectors-colbert" }));
});

test("labels, entities and ranks are the server's", async () => {
  const sentiment = await model("sentiment");
  near(await sentiment.classify(TEXTS, { topK: 2 }), await served("/models/sentiment", { inputs: TEXTS, parameters: { top_k: 2 } }));
  near(await sentiment.classify([["Good", "Bad"]]), await served("/predict", { inputs: [["Good", "Bad"]], model: "sentiment" }));
  const parameters = { candidate_labels: ["travel", "animals"], multi_label: true };
  const chosen = await (await model("zero-shot")).zeroShot(TEXTS.slice(0, 2), ["travel", "animals"], { multiLabel: true });
  near(chosen, await served("/models/zero-shot", { inputs: TEXTS.slice(0, 2), parameters }));
  const ner = { redact: true, aggregation_strategy: "first" };
  near(await (await model("ner")).entities(PEOPLE, { redact: true, aggregation: "first" }), await served("/models/ner", { inputs: PEOPLE, parameters: ner }));
  const counted = await (await model("ner")).entities(["a@b.org", "a@b.org"], { redact: true, style: "number", scope: "request", patterns: "all" });
  assert.deepEqual(counted.map(({ text }) => text), ["[EMAIL_ADDRESS_1]", "[EMAIL_ADDRESS_1]"]);
  const labels = { labels: ["person", "city"], threshold: 0.1 };
  near(await (await model("ner-labels")).entities(PEOPLE, labels), await served("/models/ner-labels", { inputs: PEOPLE, parameters: labels }));
  const query = "When does the ferry leave?";
  for (const name of ["rank", "minilm"]) {
    near(await (await model(name)).rank(query, TEXTS), await served("/rerank", { query, texts: TEXTS, model: name }));
  }
  assert.deepEqual(await (await model("minilm")).tokenize(TEXTS), await served("/tokenize", { inputs: TEXTS, model: "minilm" }));
});

test("bundles come from a folder, a URL or bytes", async () => {
  const folder = path.join(BUNDLES, "vectors-static");
  const expected = await (await model("vectors-static")).encode("a");
  const files = new Map(readdirSync(folder).map((name) => [name, readFileSync(path.join(folder, name))]));
  let requests = 0;
  let interrupted;
  const server = createServer((request, response) => {
    requests += 1;
    const name = path.basename(new URL(request.url, "http://localhost").pathname);
    const found = files.get(name);
    if (!found) return response.writeHead(404).end();
    if (name !== interrupted) return response.end(found);
    response.writeHead(200, { "content-length": found.length });
    response.write(found.subarray(0, found.length >> 1), () => request.socket.destroy());
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const url = `http://127.0.0.1:${server.address().port}/models/static`;
  try {
    const texts = Object.fromEntries([...files].map(([name, bytes]) => [name, name.endsWith(".toml") ? String(bytes) : bytes]));
    for (const bundle of [pathToFileURL(folder), url, `${url}/`, new URL(`${url}/manifest.toml?key=1`), files, texts]) {
      const opened = await load(bundle);
      assert.deepEqual(await opened.encode("a"), expected);
      opened.close();
    }
    assert.ok(requests >= 6, `${requests} requests`);
    const { UnavailableError, UnknownModelError } = kivuml;
    for (interrupted of ["manifest.toml", "weights.bin"]) {
      await assert.rejects(load(url), (error) => error instanceof UnavailableError && error.message === `cannot fetch \`${url}/${interrupted}\``);
    }
    interrupted = undefined;
    files.set("manifest.toml", readFileSync(path.join(BUNDLES, "translate-en-pt/manifest.toml")));
    requests = 0;
    await assert.rejects(load(url), kivuml.ConfigError);
    assert.equal(requests, 1, "no file of a bundle for ONNX Runtime is fetched");
    files.set("manifest.toml", readFileSync(path.join(folder, "manifest.toml")));
    files.delete("model.onnx");
    await assert.rejects(load(url), (error) => error instanceof UnknownModelError && /model\.onnx`, but found the status 404$/.test(error.message));
  } finally {
    server.close();
  }
  await assert.rejects(load(url), (error) => error instanceof kivuml.UnavailableError && error.message.startsWith("cannot fetch `http://127.0.0.1:"));
});

test("damaged and unsuitable bundles have the server's words", async () => {
  const { ConfigError, KivuOSError, ModelError } = kivuml;
  const manifest = (folder, edit) => writeFileSync(path.join(folder, "manifest.toml"), edit(readFileSync(path.join(folder, "manifest.toml"), "utf8")));
  const flip = (file) => {
    const bytes = readFileSync(file);
    bytes[bytes.length >> 1] ^= 1;
    writeFileSync(file, bytes);
  };
  for (const [change, kind, message] of [
    [(folder) => truncateSync(path.join(folder, "weights.bin"), 100), ModelError, /^expected `weights\.bin` to have \d+ bytes, but found 100; the bundle is damaged: build or fetch it again$/],
    [(folder) => truncateSync(path.join(folder, "model.onnx"), 10), ModelError, /^expected `model\.onnx` to have \d+ bytes, but found 10;/],
    [(folder) => flip(path.join(folder, "weights.bin")), ModelError, /^expected `weights\.bin` to have the BLAKE3 \w{64}, but found \w{64};/],
    [(folder) => rmSync(path.join(folder, "weights.bin")), KivuOSError, /^cannot read `.*weights\.bin`$/],
    [(folder) => rmSync(path.join(folder, "manifest.toml")), KivuOSError, /^cannot read `.*manifest\.toml`$/],
    [(folder) => manifest(folder, (text) => text.slice(0, 300)), ModelError, /^`manifest\.toml` is not a bundle: |manifest/],
    [(folder) => manifest(folder, () => ""), ModelError, /manifest/],
  ]) {
    await assert.rejects(load(changed("minilm", change)), (error) => {
      assert.ok(error instanceof kind, `${error.name}: ${error.message}`);
      assert.match(error.message, message);
      return true;
    });
  }
  const generator = path.join(BUNDLES, "translate-en-pt");
  await assert.rejects(load(generator), (error) => {
    assert.ok(error instanceof ConfigError, String(error));
    assert.equal(error.message, "expected a bundle for the native engine, but found that `translate-en-pt` is for ONNX Runtime; build it with `--engine native`");
    return true;
  });
  assert.deepEqual(await (await model("minilm")).encode("a"), await (await model("minilm")).encode("a"), "other models go on");
});

test("bad input has the server's words", async () => {
  const [minilm, sentiment] = await Promise.all(["minilm", "sentiment"].map(model));
  const { InvalidError } = kivuml;
  for (const [call, kind, message] of [
    [() => minilm.encode(7), TypeError, "expected `texts` to be a string or an iterable of strings, but found `number`"],
    [() => minilm.encode(["a", ""]), InvalidError, "expected a text in `texts[1]`, but found an empty one"],
    [() => minilm.encode([...Array(40).fill("a"), ""]), InvalidError, "expected a text in `texts[40]`, but found an empty one"],
    [() => minilm.encode("\ud800"), InvalidError, "expected Unicode text in `texts[0]`, but found half of a surrogate pair"],
    [() => minilm.encode("a", { dimensions: "many" }), InvalidError, "expected `dimensions` to be an integer from 0 on, but found a string"],
    [() => minilm.classify("a"), InvalidError, "expected a model for `text-classification`, but `minilm` is for `feature-extraction`"],
    [() => minilm.translate("a"), InvalidError, "expected a model for `translation`, but `minilm` is for `feature-extraction`"],
    [() => minilm.rank("", ["b"]), InvalidError, "expected a text in `query`, but found an empty one"],
    [() => sentiment.classify([["a", "b", "c"]]), InvalidError, "expected a text or a pair in `texts[0]`, but found 3 texts"],
    [() => load(7), TypeError, "expected `bundle` to be a string, a URL or files by name, but found `number`"],
    [() => load(BUNDLES, { cache: "no" }), TypeError, "expected `cache` to be a boolean, but found `string`"],
    [() => load(BUNDLES, { fetch: 7 }), TypeError, "expected `fetch` to be a function, but found `number`"],
    [() => load(BUNDLES, { threads: 2 }), TypeError, "expected options among `signal`, `cache`, `module`, `fetch`, but found `threads`"],
    [() => load({}), kivuml.ModelError, "expected `manifest.toml` among the files, but found none"],
    [async () => new kivuml.Model(), TypeError, "expected a model from `load`, but found a call of its constructor"],
  ]) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof kind, `${error.name}: ${error.message}`);
      assert.equal(error.message, message);
      return true;
    });
  }
});

test("calls after `close` are errors, and calls before it end", async () => {
  const opened = await load(path.join(BUNDLES, "vectors-static"));
  const call = opened.encode(TEXTS);
  opened.close();
  opened.close();
  assert.equal((await call).length, TEXTS.length);
  await assert.rejects(opened.encode("a"), { name: "ClosedError", message: "expected an open model, but `vectors-static` is closed; load it again" });
});

test("calls end with their signal", async () => {
  const minilm = await model("minilm");
  const controller = new AbortController();
  const call = minilm.encode(Array(400).fill("many words in a long text ".repeat(10)), { signal: controller.signal, onProgress: () => controller.abort(new Error("enough")) });
  await assert.rejects(call, { message: "enough" });
  await assert.rejects(load(path.join(BUNDLES, "minilm"), { signal: AbortSignal.abort(new Error("no")) }), { message: "no" });
});

test("the package for Node.js uses this one where it has no native module", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "kivuml-fallback-"));
  after(() => rmSync(folder, { recursive: true }));
  const modules = path.join(folder, "node_modules");
  cpSync(path.join(ROOT, "node/kivuml"), path.join(modules, "kivuml"), { recursive: true });
  cpSync(path.join(ROOT, "node/package.json"), path.join(modules, "kivuml/package.json"));
  const require = createRequire(path.join(folder, "program.js"));
  assert.throws(() => require("kivuml"), /^Error: expected the npm package `kivuml-\w+-\w+` or `kivuml-wasm`, but found neither;/);
  symlinkSync(PACKAGE, path.join(modules, "kivuml-wasm"));
  const native = require("kivuml");
  const opened = await native.load(path.join(BUNDLES, "minilm"));
  assert.deepEqual(await opened.encode(TEXTS), await (await model("minilm")).encode(TEXTS));
  await assert.rejects(opened.encode(""), (error) => error instanceof native.InvalidError);
  opened.close();
  const { ConfigError } = native;
  await assert.rejects(native.load("intfloat/e5-small"), (error) => error instanceof ConfigError && error.message.startsWith("expected a bundle's folder, since this platform runs models in WebAssembly"));
  await assert.rejects(native.load(path.join(BUNDLES, "minilm"), { threads: 2 }), (error) => error instanceof ConfigError && error.message.startsWith("expected no option `threads` on this platform"));
});

test("memory that cannot grow is an error, and other models load again", async () => {
  // The module's memory gets a maximum of 24 MiB, less than the weights.
  const code = `
    const minilm = bundles + "/minilm";
    use(data);
    const error = await load(minilm).then(() => undefined, ({ name, message }) => ({ name, message }));
    const small = await load(bundles + "/vectors-static");
    return [error, (await small.encode("a")).length];`;
  const [error, length] = await inWorker(code, withMaximum(readFileSync(MODULE), 384));
  assert.deepEqual(error, { name: "TooLargeError", message: "the memory cannot grow further; use a smaller model, or fewer and shorter texts" });
  assert.ok(length > 0);
});

test("memory is reused", async () => {
  const bytes = await inWorker(
    `const opened = await load(bundles + "/minilm");
     const texts = Array.from({ length: 1000 }, (_, number) => "some words ".repeat(1 + (number % 8)) + number);
     await opened.encode(texts);
     const first = memory();
     for (let again = 0; again < 2; again++) await opened.encode(texts.slice(0, 200));
     return [first, memory()];`,
  );
  assert.equal(bytes[0], bytes[1]);
  assert.ok(bytes[0] <= 80e6, `${bytes[0]} bytes`);
});
