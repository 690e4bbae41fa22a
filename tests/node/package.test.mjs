// Uses the npm package `kivuml` as its users do, next to a server with the same models.
//
//     TEST_BUNDLES=FOLDER TEST_URL=http://127.0.0.1:8080 TEST_KIVU=target/debug/kivu TEST_PACKAGE=FOLDER TEST_NODE=.kivu/node \
//       node --expose-gc tests/node/package.test.mjs
//
// TEST_PACKAGE has the folder `node_modules/kivuml` with the native module. The server serves TEST_BUNDLES. TEST_NODE has
// the packages of `package.json`.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { setImmediate as turn, setTimeout as delay } from "node:timers/promises";
import { after, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";

const { TEST_BUNDLES: BUNDLES, TEST_KIVU: KIVU, TEST_NODE: TOOLS, TEST_PACKAGE: PACKAGE } = process.env;
const URL_OF_SERVER = process.env.TEST_URL.replace(/\/$/, "");
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FOLDER = path.join(PACKAGE, "node_modules/kivuml");
const ENTRY = pathToFileURL(path.join(FOLDER, "index.mjs")).href;
const kivuml = await import(ENTRY);
const { load } = kivuml;
const require = createRequire(path.join(PACKAGE, "program.js"));
const TEXTS = ["The ferry leaves at seven.", "Der Zug nach Hamburg fährt um zwölf ab.", "A cat sat on the mat.", "猫 🐈", " "];
const PEOPLE = ["Ada Lovelace lived in London.", "Angela Merkel wurde in Hamburg geboren."];

const models = new Map();
/** A loaded model; the same one in all tests. */
function model(name) {
  if (!models.has(name)) models.set(name, load(path.join(BUNDLES, name)));
  return models.get(name);
}

async function post(route, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(URL_OF_SERVER + route, options);
  return { status: response.status, body: await response.json() };
}

async function served(route, body) {
  const response = await post(route, body);
  assert.equal(response.status, 200, JSON.stringify(response.body));
  return response.body;
}

/** How a command ends, with its output. */
async function run(file, ...words) {
  try {
    return { code: 0, signal: null, ...(await promisify(execFile)(file, words, { cwd: PACKAGE, timeout: 60_000 })) };
  } catch (error) {
    if (error.stdout === undefined) throw error;
    return { code: error.code, signal: error.signal, stdout: error.stdout, stderr: error.stderr };
  }
}

/** Runs a module's code, in which `load` and `bundle` are known. */
function program(code) {
  const begin = `import { load } from ${JSON.stringify(ENTRY)}; const bundle = (name) => ${JSON.stringify(BUNDLES)} + "/" + name;`;
  return run(process.execPath, "--input-type=module", "--eval", begin + code);
}

const bytes = (arrays) => Buffer.concat(arrays.map((array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength)));
const floats = (rows) => rows.map((row) => Float32Array.from(row));
const same = (found, expected) => assert.deepEqual(bytes(found), bytes(expected));

after(async () => {
  for (const opened of models.values()) (await opened.catch(() => undefined))?.close();
});

test("vectors have the server's bits", async () => {
  for (const name of ["minilm", "prompts", "vectors-static"]) {
    const found = await (await model(name)).encode(TEXTS, { normalize: true });
    assert.ok(found.every((vector) => vector instanceof Float32Array));
    same(found, floats(await served("/embed", { inputs: TEXTS, model: name })));
  }
});

test("options are the server's", async () => {
  for (const [options, body, type] of [
    [{ dimensions: 128 }, { dimensions: 128 }, Float32Array],
    [{ precision: "int8" }, { output_dtype: "int8" }, Int8Array],
    [{ precision: "uint8", dimensions: 64 }, { output_dtype: "uint8", dimensions: 64 }, Uint8Array],
    [{ precision: "binary" }, { output_dtype: "binary" }, Int8Array],
    [{ precision: "ubinary" }, { output_dtype: "ubinary" }, Uint8Array],
  ]) {
    const found = await (await model("minilm")).encode(TEXTS, options);
    const expected = await served("/embed", { inputs: TEXTS, model: "minilm", ...body });
    assert.deepEqual(found, expected.map((row) => type.from(row)), JSON.stringify(options));
  }
  const prompts = await model("prompts");
  assert.deepEqual([prompts.queryPrompt, prompts.documentPrompt], ["query", "document"]);
  const found = await prompts.encode(TEXTS, { promptName: prompts.queryPrompt, normalize: true });
  same(found, floats(await served("/embed", { inputs: TEXTS, model: "prompts", prompt_name: "query" })));
  assert.notDeepEqual(found, await prompts.encode(TEXTS, { promptName: prompts.documentPrompt, normalize: true }));
});

test("a single text has a single vector, and many have one buffer", async () => {
  const minilm = await model("minilm");
  const [single, many] = [await minilm.encode(TEXTS[0]), await minilm.encode([TEXTS[0], TEXTS[1]])];
  assert.equal(single.length, 384);
  assert.deepEqual(single, many[0]);
  assert.equal(many[0].buffer, many[1].buffer);
  assert.equal(many[1].byteOffset, 384 * 4);
});

test("batches of any size have the same bits", async () => {
  const texts = Array.from({ length: 2250 }, (_, number) => `${TEXTS[number % 5]} ${number}`);
  const steps = [];
  const table = await model("vectors-static");
  const found = await table.encode(texts, { onProgress: (done, total) => steps.push([done, total]) });
  assert.deepEqual(steps, [[1024, 2250], [2048, 2250], [2250, 2250]]);
  assert.equal(new Set(found.map((vector) => vector.buffer)).size, 1);
  for (const place of [0, 1023, 1024, 2047, 2048, 2249]) same([found[place]], [await table.encode(texts[place])]);
});

test("sparse vectors and vectors per token", async () => {
  const splade = await model("vectors-splade");
  const sparse = await splade.sparse(TEXTS.slice(0, 2), { maxActiveDims: 5 });
  const body = { inputs: TEXTS.slice(0, 2), model: "vectors-splade", max_active_dims: 5 };
  const expected = await served("/embed_sparse", body);
  assert.deepEqual(sparse.map((weights) => [...weights]), expected.map((text) => text.map(({ index, value }) => [index, value])));
  const words = await splade.sparse(TEXTS[0], { maxActiveDims: 5, words: true });
  assert.deepEqual([words.size, [...words.keys()].every((word) => typeof word === "string")], [5, true]);
  for (const name of ["vectors-colbert", "minilm"]) {
    const found = await (await model(name)).multiVectors(TEXTS);
    const rows = await served("/embed_all", { inputs: TEXTS, model: name });
    assert.deepEqual(found, rows.map(floats));
    assert.deepEqual(await (await model(name)).multiVectors(TEXTS[1]), found[1]);
  }
});

test("classes and entities are the server's", async () => {
  const sentiment = await model("sentiment");
  const found = await sentiment.classify(TEXTS, { topK: 1 });
  assert.deepEqual(found, await served("/models/sentiment", { inputs: TEXTS, parameters: { top_k: 1 } }));
  assert.deepEqual(await sentiment.classify(TEXTS[0], { topK: 1 }), found[0]);
  const pair = await sentiment.classify([["Good", "Bad"]]);
  assert.deepEqual(pair, await served("/predict", { inputs: [["Good", "Bad"]], model: "sentiment" }));
  const zero = await model("zero-shot");
  const parameters = { candidate_labels: ["travel", "animals"], multi_label: true };
  const chosen = await zero.zeroShot(TEXTS.slice(0, 2), ["travel", "animals"], { multiLabel: true });
  assert.deepEqual(chosen, await served("/models/zero-shot", { inputs: TEXTS.slice(0, 2), parameters }));
  await assert.rejects(zero.zeroShot(TEXTS, "a,b", { prompt: "topic" }), { name: "InvalidError", message: /`prompt` is not supported: the model does not read labels and text together/ });
  await assert.rejects(zero.zeroShot("word ".repeat(600), "a,b", { truncate: false }), { name: "TooLargeError" });
  assert.deepEqual(await zero.zeroShot(TEXTS[0], "travel,animals"), await zero.zeroShot(TEXTS[0], new Set(["travel", "animals"])));
  const redacted = await (await model("ner")).entities(PEOPLE, { redact: true, aggregation: "first" });
  assert.deepEqual(redacted, await served("/models/ner", { inputs: PEOPLE, parameters: { redact: true, aggregation_strategy: "first" } }));
  const { text, mapping } = await (await model("ner")).entities(PEOPLE[0], { redact: true, style: "number", patterns: "all" });
  const restored = await (await model("ner")).restore([`Dear ${text}`], { mapping });
  assert.deepEqual(restored, await served("/restore", { inputs: [`Dear ${text}`], redact_mapping: mapping }));
  assert.equal(restored[0].text, `Dear ${PEOPLE[0]}`);
  // More texts than one call of the native module runs otherwise.
  const mails = Array.from({ length: 2100 }, (_, index) => `Ask ${index % 2}@example.org`);
  const known = { "[EMAIL_ADDRESS_7]": "1@example.org" };
  const counted = await (await model("ner")).entities(mails, { redact: true, style: "number", scope: "request", mapping: known, patterns: "all" });
  assert.deepEqual(counted.slice(-2).map(({ text }) => text.slice(-17)), ["[EMAIL_ADDRESS_8]", "[EMAIL_ADDRESS_7]"]);
  const numbers = { redact: true, redact_style: "number", redact_scope: "request", redact_mapping: known, patterns: "all" };
  assert.deepEqual(counted.slice(0, 2), await served("/models/ner", { inputs: mails.slice(0, 2), parameters: numbers }));
  const labelled = await (await model("ner-labels")).entities(PEOPLE, { labels: ["person", "city"], threshold: 0.1 });
  const labels = { labels: ["person", "city"], threshold: 0.1 };
  assert.deepEqual(labelled, await served("/models/ner-labels", { inputs: PEOPLE, parameters: labels }));
});

test("extractions are the server's, with the order of names", async () => {
  const extract = await model("extract");
  const structures = { trip: ["who::str", "from::list::Where it begins", "mode::[train|ferry]::str"], act: ["verb"] };
  const schema = { structures: { trip: { fields: [{ name: "who", dtype: "str" }, { name: "place" }] } }, entities: ["place"] };
  for (const [form, own] of [["extract_json", structures], ["schema", schema]]) {
    const body = { text: PEOPLE, task: form, schema: own, model: "extract", threshold: 0.3, include_spans: true };
    const found = await extract.extract(PEOPLE, own, { form, threshold: 0.3, spans: true });
    assert.equal(JSON.stringify(found), JSON.stringify((await served("/gliner-2", body)).result));
  }
  const one = { text: PEOPLE[0], schema: { entities: ["place"] }, model: "extract", include_confidence: true };
  const single = await extract.extract(PEOPLE[0], { entities: ["place"] }, { confidence: true });
  assert.deepEqual(single, (await served("/gliner-2", one)).result);
  const ner = await model("ner");
  await assert.rejects(ner.extract("a", { entities: ["b"] }), /`schema` is not supported: `ner` has labels of its own/);
  await assert.rejects(extract.extract("a", { entity: ["b"] }), /unknown field in `schema`: `entity`/);
});

test("a task chooses its adapters", async () => {
  const tasks = await model("tasks");
  assert.deepEqual(tasks.tasks.slice(0, 2), ["retrieval.query", "retrieval.passage"]);
  assert.equal(tasks.queryPrompt, tasks.tasks[0]);
  for (const task of [undefined, ...tasks.tasks]) {
    const [found] = await tasks.encode([TEXTS[0]], { task });
    const [expected] = await served("/embed", { inputs: [TEXTS[0]], model: "tasks", task });
    const tokens = await tasks.tokenize(TEXTS, { task });
    assert.deepEqual(tokens, await served("/tokenize", { inputs: TEXTS, model: "tasks", task }));
    assert.deepEqual([...found], expected.map(Math.fround));
  }
  await assert.rejects(tasks.encode("a", { task: "other" }), /but found `other`/);
});

test("ranks, texts and tokens are the server's", async () => {
  const query = "When does the ferry leave?";
  for (const name of ["rank", "minilm"]) {
    const found = await (await model(name)).rank(query, TEXTS, { topK: 2, returnDocuments: true });
    assert.deepEqual(found, (await served("/rerank", { query, texts: TEXTS, model: name, return_text: true })).slice(0, 2));
  }
  const cross = await model("rank-cross");
  const prompted = await cross.rank(query, TEXTS, { prompt: "query: " });
  assert.deepEqual(prompted, await served("/rerank", { query, texts: TEXTS, model: "rank-cross", prompt: "query: " }));
  assert.notDeepEqual(prompted, await cross.rank(query, TEXTS));
  await assert.rejects((await model("rank")).rank(query, TEXTS, { prompt: "query: " }), { name: "InvalidError", message: /`prompt` is not supported: the model compares vectors/ });
  await assert.rejects((await model("rank")).rank(query, TEXTS, { instruction: "Find ships" }), { name: "InvalidError", message: /`instruction` is not supported: the model compares vectors/ });
  const texts = ["Good morning.", "The cat sleeps. It is late."];
  const translated = await (await model("translate-en-pt")).translate(texts, { source: "en", target: "pt" });
  const expected = await served("/translate", { inputs: texts, model: "translate-en-pt" });
  assert.deepEqual(translated, expected.translations.map(({ text }) => text));
  const summary = await model("summary");
  const short = { generation: { max_new_tokens: 8 } };
  const found = await summary.summarize(TEXTS.slice(0, 2), short);
  const body = { inputs: TEXTS.slice(0, 2), parameters: { generate_parameters: { max_new_tokens: 8 } } };
  assert.deepEqual(found.map((text) => ({ summary_text: text })), await served("/models/summary", body));
  assert.equal(await summary.generate(TEXTS[0], short), found[0]);
  // More texts than one call of the native module runs otherwise.
  const generation = { do_sample: true, num_beams: 1, seed: 1, temperature: 3, max_new_tokens: 4 };
  const many = Array(70).fill("cat");
  const sampled = await summary.summarize(many, { generation });
  const sampledBody = { inputs: many, parameters: { generate_parameters: generation } };
  assert.deepEqual(sampled.map((text) => ({ summary_text: text })), await served("/models/summary", sampledBody));
  for (const name of ["minilm", "translate-en-pt"]) {
    assert.deepEqual(await (await model(name)).tokenize(TEXTS), await served("/tokenize", { inputs: TEXTS, model: name }));
  }
  const withPrompt = await (await model("minilm")).tokenize(TEXTS, { prompt: "query: " });
  assert.deepEqual(withPrompt, await served("/tokenize", { inputs: TEXTS, model: "minilm", prompt: "query: " }));
});

test("texts are any iterable, and are copied when a call begins", async () => {
  const minilm = await model("minilm");
  const expected = await minilm.encode(TEXTS);
  function* generator() {
    yield* TEXTS;
  }
  for (const texts of [new Set(TEXTS), TEXTS.values(), generator(), Object.freeze([...TEXTS])]) same(await minilm.encode(texts), expected);
  const changed = Array.from({ length: 1025 }, () => "a");
  const call = minilm.encode(changed.map(() => "a").concat(TEXTS));
  const mutable = [...TEXTS];
  const other = minilm.encode(mutable);
  mutable.fill(null);
  same(await other, expected);
  same((await call).slice(1025), expected);
  assert.equal((await load(pathToFileURL(path.join(BUNDLES, "minilm")))).name, "minilm");
});

test("bad input has the server's words", async () => {
  const [minilm, ner, sentiment, labelled] = await Promise.all(["minilm", "ner", "sentiment", "ner-labels"].map(model));
  const list = "expected `texts` to be a string or an iterable of strings, but found";
  const { InvalidError, ConfigError, KivuError } = kivuml;
  for (const [call, kind, message] of [
    [() => minilm.encode(null), TypeError, `${list} \`null\``],
    [() => minilm.encode(), TypeError, `${list} \`undefined\``],
    [() => minilm.encode(7), TypeError, `${list} \`number\``],
    [() => minilm.encode({ a: "b" }), TypeError, `${list} \`Object\``],
    [() => minilm.encode(Buffer.from("a")), TypeError, `${list} \`Buffer\``],
    [() => minilm.encode(new Map([["a", "b"]])), TypeError, `${list} \`Map\``],
    [() => minilm.encode(new String("ab")), TypeError, `${list} \`String\``],
    [() => minilm.encode(Promise.resolve("a")), TypeError, `${list} \`Promise\``],
    [() => minilm.encode(["a", 7]), TypeError, "expected `texts[1]` to be a string, but found `number`"],
    [() => minilm.encode(["a", , "b"]), TypeError, "expected `texts[1]` to be a string, but found `undefined`"],
    [() => minilm.encode([["a"]]), TypeError, "expected `texts[0]` to be a string, but found `Array`"],
    [() => minilm.encode([...Array(1500).fill("a"), null]), TypeError, "expected `texts[1500]` to be a string, but found `null`"],
    [() => minilm.encode([]), InvalidError, "expected at least one text in `texts`, but found none"],
    [() => minilm.encode(["a", ""]), InvalidError, "expected a text in `texts[1]`, but found an empty one"],
    [() => minilm.encode([...Array(1500).fill("a"), ""]), InvalidError, "expected a text in `texts[1500]`, but found an empty one"],
    [() => minilm.encode("\ud800"), InvalidError, "expected Unicode text in `texts[0]`, but found half of a surrogate pair"],
    [() => minilm.encode("a", { precision: "int4" }), InvalidError, 'expected `precision` among `float32`, `int8`, `uint8`, `binary`, `ubinary`, but found "int4"'],
    [() => minilm.encode("a", { prompt_name: "b" }), TypeError, "expected options among `promptName`, `prompt`, `instruction`, `task`, `dimensions`, `normalize`, `precision`, `truncate`, `signal`, `onProgress`, but found `prompt_name`"],
    [() => minilm.encode("a", "int8"), TypeError, "expected `options` to be an object, but found `string`"],
    [() => minilm.encode("a", { dimensions: "many" }), InvalidError, "expected `dimensions` to be an integer from 0 on, but found a string"],
    [() => minilm.encode("a", { precision: ["int8"] }), InvalidError, 'expected `precision` among `float32`, `int8`, `uint8`, `binary`, `ubinary`, but found ["int8"]'],
    [() => minilm.encode("a", { prompt: new Date(0) }), TypeError, "expected a parameter of a plain type, but found `Date`"],
    [() => minilm.encode("a", { prompt: new String("b") }), TypeError, "expected a parameter of a plain type, but found `String`"],
    [() => minilm.encode("a", { prompt: { toJSON: () => "b" } }), TypeError, "expected a parameter of a plain type, but found `function`"],
    [() => minilm.encode("a", { dimensions: 7n }), TypeError, "expected a parameter of a plain type, but found `bigint`"],
    [() => minilm.encode("a", { prompt: "\ud800" }), InvalidError, "expected Unicode text in `parameters`, but found half of a surrogate pair"],
    [() => minilm.encode("a", new Map([["dimensions", 8]])), TypeError, "expected `options` to be an object, but found `Map`"],
    [() => minilm.encode("a", Promise.resolve({ dimensions: 8 })), TypeError, "expected `options` to be an object, but found `Promise`"],
    [() => sentiment.translate("a", { generation: Promise.resolve({ num_beams: 2 }) }), TypeError, "expected a parameter of a plain type, but found `Promise`"],
    [() => sentiment.translate("a", { generation: { suppress_tokens: new Uint32Array(1) } }), TypeError, "expected a parameter of a plain type, but found `Uint32Array`"],
    [() => sentiment.translate("a", { generation: [] }), InvalidError, "expected `generate_parameters` to be an object, but found a list"],
    [() => minilm.encode("a", { onProgress: 7 }), TypeError, "expected `onProgress` to be a function, but found `number`"],
    [() => minilm.encode("a", { signal: 7 }), TypeError, "expected `signal` to be an AbortSignal, but found `number`"],
    [() => ner.entities("a", { stride: NaN }), InvalidError, "expected finite numbers as parameters, but found another value"],
    [() => minilm.rank("a", ["b"], { topK: 0 }), InvalidError, "expected `top_k` above 0, but found 0"],
    [() => minilm.rank("a", ["b"], { returnDocuments: "no" }), TypeError, "expected `returnDocuments` to be a boolean, but found `string`"],
    [() => minilm.rank(null, ["b"]), TypeError, "expected `query` to be a string, but found `null`"],
    [() => minilm.rank("", ["b"]), InvalidError, "expected a text in `query`, but found an empty one"],
    [() => minilm.rank("a", ["b", null]), TypeError, "expected `documents[1]` to be a string, but found `null`"],
    [() => labelled.entities("a"), InvalidError, "expected `labels` for `ner-labels`, which finds entities with labels that you choose, but found none"],
    [() => ner.entities("a", { patterns: [] }), InvalidError, "expected at least one text in `patterns`, but found none"],
    [() => ner.entities("a", { labels: ["b"] }), InvalidError, "`labels` is not supported: `ner` has labels of its own; omit them"],
    [() => sentiment.classify([["a", "b", "c"]]), InvalidError, "expected a text or a pair in `texts[0]`, but found 3 texts"],
    [() => sentiment.classify([["a", ""]]), InvalidError, "expected a text in `texts[0][1]`, but found an empty one"],
    [() => sentiment.classify([["a", null]]), TypeError, "expected `texts[0][1]` to be a string, but found `null`"],
    [() => load(7), TypeError, "expected `name` to be a string or a URL, but found `number`"],
    [() => load(path.join(BUNDLES, "minilm"), { threads: 0 }), InvalidError, null],
    [() => load(path.join(BUNDLES, "minilm"), { home: new URL("file:///tmp") }), TypeError, "expected a parameter of a plain type, but found `URL`"],
    [() => load(path.join(BUNDLES, "minilm"), { engine: "fast" }), InvalidError, null],
    [() => load("nothing"), ConfigError, null],
    [() => load(mkdtempSync(path.join(tmpdir(), "kivu-empty-"))), KivuError, null],
    [async () => new kivuml.Model(), TypeError, "expected a model from `load`, but found a call of its constructor"],
  ]) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof kind, `${error.name}: ${error.message}`);
      assert.match(error.code, kind === TypeError ? /^ERR_INVALID_ARG_TYPE$/ : /^ERR_KIVU_[A-Z_]+$/);
      if (message !== null) assert.equal(error.message, message);
      return true;
    });
  }
});

test("messages equal the server's", async () => {
  const open = Object.fromEntries(await Promise.all(["minilm", "sentiment", "translate-en-pt"].map(async (name) => [name, await model(name)])));
  const long = "a ".repeat(600);
  for (const [call, route, body] of [
    [() => open.minilm.encode("a", { dimensions: 385 }), "/embed", { inputs: "a", model: "minilm", dimensions: 385 }],
    [() => open.minilm.encode("a", { promptName: "x" }), "/embed", { inputs: "a", model: "minilm", prompt_name: "x" }],
    [() => open.minilm.sparse("a"), "/embed_sparse", { inputs: "a", model: "minilm" }],
    [() => open.minilm.encode(long, { truncate: false }), "/embed", { inputs: long, model: "minilm", truncate: false }],
    [() => open.minilm.classify("a"), "/predict", { inputs: "a", model: "minilm" }],
    [() => open.sentiment.encode("a"), "/embed", { inputs: "a", model: "sentiment" }],
    [() => open.sentiment.rank("a", ["b"]), "/rerank", { query: "a", texts: ["b"], model: "sentiment" }],
    [() => open.sentiment.translate("a"), "/translate", { inputs: "a", model: "sentiment" }],
    [() => open["translate-en-pt"].translate("a", { source: "xx" }), "/translate", { inputs: "a", model: "translate-en-pt", src_lang: "xx" }],
  ]) {
    const refused = await post(route, body);
    assert.ok(refused.status >= 400);
    await assert.rejects(call, (error) => error instanceof kivuml.KivuError && error.message === refused.body.error);
  }
});

test("random arguments end in errors of known classes", async () => {
  let state = 7;
  const pick = (values) => values[(state = (state * 48271) % 2147483647) % values.length];
  const values = [null, undefined, 7, -1, 1.5, NaN, "", "a", [], ["a"], [null], {}, { a: 1 }, [1, 2], Symbol("a"), 7n, "\ud800", 2 ** 70, true, () => 1, new Date(NaN)];
  const any = () => pick(values);
  const opened = await Promise.all(["minilm", "sentiment", "ner", "vectors-splade"].map(model));
  const native = require(path.join(FOLDER, "native.js"));
  const classes = Object.values(kivuml).filter((value) => value.prototype instanceof Error);
  const names = new Set();
  for (let count = 0; count < 2000; count++) {
    const one = pick(opened);
    try {
      await pick([
        () => one.encode(any(), { promptName: any(), dimensions: any(), normalize: any(), truncate: any(), precision: pick([undefined, any()]) }),
        () => one.rank(any(), any(), { topK: any(), rawScores: any() }),
        () => one.classify(any(), { topK: any(), functionToApply: any() }),
        () => one.entities(any(), { labels: any(), stride: any(), threshold: any() }),
        () => one.sparse(any(), { maxActiveDims: any(), words: any() }),
        () => one.zeroShot(any(), any(), { template: any() }),
        () => one.tokenize(any(), any()),
        () => one.translate(any(), { generation: any(), signal: any() }),
        () => load("a", { task: any(), threads: any(), precision: any() }),
        () => native.load(any(), any(), any()),
        () => native.Model.prototype.encode.call(any(), any(), any(), any(), any()),
      ])();
    } catch (error) {
      assert.ok(error instanceof Error, String(error));
      names.add(error.constructor);
      assert.ok([Error, TypeError, ...classes].includes(error.constructor), `${error.stack}`);
    }
  }
  assert.ok(names.has(TypeError) && names.has(kivuml.InvalidError), [...names].map((kind) => kind.name).join());
});

test("closed models", async () => {
  const opened = await load(path.join(BUNDLES, "minilm"));
  const call = opened.encode(TEXTS);
  opened.close();
  opened.close();
  same(await call, await (await model("minilm")).encode(TEXTS));
  await assert.rejects(opened.encode("a"), { name: "ClosedError", code: "ERR_KIVU_CLOSED", message: /^expected an open model, but `.*minilm` is closed; load it again$/ });
  if (Symbol.dispose) assert.equal(opened[Symbol.dispose](), undefined);
});

test("the event loop turns while a model runs", async () => {
  const minilm = await model("minilm");
  let isDone = false;
  let turns = 0;
  const call = minilm.encode(Array(20).fill(TEXTS).flat()).then(() => (isDone = true));
  while (!isDone) {
    turns += 1;
    await turn();
  }
  await call;
  // A call on this thread would leave one turn.
  assert.ok(turns > 20, `${turns} turns`);
  // The same while a model is loaded.
  const loading = load(path.join(BUNDLES, "minilm")).then((opened) => opened.close());
  let first = null;
  await Promise.race([loading.then(() => (first ??= "model")), turn().then(() => (first ??= "turn"))]);
  assert.equal(first, "turn");
  await loading;
});

test("an aborted call ends with the signal's reason, and its work stops", async () => {
  const minilm = await model("minilm");
  // Minutes without the signal.
  const documents = Array(20_000).fill(TEXTS).flat();
  const controller = new AbortController();
  const call = minilm.rank("a", documents, { signal: controller.signal });
  await delay(50);
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
  // Ends soon only if nothing of the aborted call is before it.
  assert.equal((await minilm.encode("a")).length, 384);
  await assert.rejects(minilm.rank("a", documents, { signal: AbortSignal.timeout(20) }), { name: "TimeoutError" });
  const reason = new Error("own");
  await assert.rejects(minilm.encode("a", { signal: AbortSignal.abort(reason) }), reason);
  // After a batch, the next one does not begin.
  const table = await model("vectors-static");
  const second = new AbortController();
  const steps = [];
  const onProgress = (done) => {
    steps.push(done);
    second.abort(reason);
  };
  await assert.rejects(table.encode(Array(3000).fill("a"), { signal: second.signal, onProgress }), reason);
  assert.deepEqual(steps, [1024]);
  // A signal that is aborted after the call changes nothing, and keeps nothing.
  const late = new AbortController();
  await table.encode("a", { signal: late.signal });
  late.abort();
});

test("an aborted download ends", async () => {
  // Accepts requests, and never answers.
  const hub = createServer(() => {}).listen(0, "127.0.0.1");
  await once(hub, "listening");
  const home = mkdtempSync(path.join(tmpdir(), "kivu-"));
  const code = `
    try {
      await load("org/name", { home: ${JSON.stringify(home)}, signal: AbortSignal.timeout(200) });
    } catch (error) {
      console.log(error.name);
    }
    process.exit(0);`;
  process.env.HF_ENDPOINT = `http://127.0.0.1:${hub.address().port}`;
  const done = await program(code);
  delete process.env.HF_ENDPOINT;
  hub.closeAllConnections?.();
  hub.close();
  rmSync(home, { recursive: true });
  assert.deepEqual([done.stdout, done.code], ["TimeoutError\n", 0], done.stderr);
});

test("workers have models of their own, and may end at any time", async () => {
  const expected = bytes(await (await model("minilm")).encode(TEXTS)).toString("hex");
  const code = `
    const { parentPort, workerData } = require("node:worker_threads");
    require(workerData.package).load(workerData.bundle).then(async (model) => {
      const vectors = await model.encode(workerData.texts);
      parentPort.postMessage(Buffer.from(vectors[0].buffer).toString("hex"));
      if (workerData.ends) return;
      model.encode(Array(200).fill(workerData.texts).flat());
      parentPort.postMessage("busy");
    });`;
  const start = (ends) =>
    new Worker(code, { eval: true, workerData: { package: FOLDER, bundle: path.join(BUNDLES, "minilm"), texts: TEXTS, ends } });
  const ended = async (worker) => (await Promise.all([once(worker, "message"), once(worker, "exit")])).flat();
  assert.deepEqual(await Promise.all([ended(start(true)), ended(start(true))]), [[expected, 0], [expected, 0]]);
  for (let count = 0; count < 3; count++) {
    const worker = start(false);
    while ((await once(worker, "message"))[0] !== "busy");
    assert.equal(await worker.terminate(), 1);
  }
  assert.equal((await (await model("minilm")).encode("a")).length, 384);
  // The module is first loaded by a worker that ends, and then again.
  const only = await program(`
    const { Worker } = await import("node:worker_threads");
    const { once } = await import("node:events");
    const code = ${JSON.stringify(code)};
    const workerData = { package: ${JSON.stringify(FOLDER)}, bundle: bundle("minilm"), texts: ["a"], ends: true };
    for (const number of [1, 2]) {
      const worker = new Worker(code, { eval: true, execArgv: [], workerData });
      console.log((await once(worker, "exit"))[0]);
    }`.replace("import { load }", "import {}"));
  assert.deepEqual([only.stdout, only.code, only.signal], ["0\n0\n", 0, null], only.stderr);
});

test("a process ends cleanly with calls in flight", async () => {
  for (const name of ["minilm", "prompts", "translate-en-pt"]) {
    const begin = `const model = await load(bundle(${JSON.stringify(name)}));
      const texts = Array(400).fill(${JSON.stringify(TEXTS[0])});
      ${name === "translate-en-pt" ? "model.translate(texts)" : "model.encode(texts)"}.catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, 30));`;
    const ends = await Promise.all([program(`${begin} process.exit(3);`), program(`${begin} process.exit(0);`), program(`${begin} throw new Error("own");`), program(`${begin} model.close(); process.exitCode = 4; process.exit();`)]);
    const codes = ends.map(({ code, signal }) => signal ?? code);
    assert.deepEqual(codes, [3, 0, 1, 4], ends.map(({ stderr }) => stderr).join("\n"));
  }
  // Without `process.exit`, the process waits for the call.
  const done = await program(`const model = await load(bundle("minilm")); model.encode("a").then(({ length }) => console.log(length));`);
  assert.deepEqual([done.stdout, done.code], ["384\n", 0], done.stderr);
});

test("calls leave nothing behind", async () => {
  const table = await model("vectors-static");
  const signal = new AbortController().signal;
  const memory = () => {
    globalThis.gc();
    return Number(readFileSync("/proc/self/statm", "utf8").split(" ")[1]) * 4096;
  };
  const open = (folder) => readdirSync(`/proc/self/${folder}`).length;
  const calls = async (count) => {
    for (let number = 0; number < count; number++) {
      await table.encode(TEXTS, { signal });
      await table.tokenize(TEXTS[0]);
      await table.classify("a").catch(() => {});
    }
  };
  await calls(1000);
  const [resident, files] = [memory(), open("fd")];
  await calls(3000);
  assert.ok(memory() - resident < 6e6, `${memory() - resident} bytes`);
  assert.ok(open("fd") <= files, `${open("fd")} files after ${files}`);
  const threads = open("task");
  for (let number = 0; number < 20; number++) (await load(path.join(BUNDLES, "minilm"))).close();
  // Threads end soon after `close`.
  for (let wait = 0; wait < 100 && open("task") > threads + 10; wait++) await delay(20);
  assert.ok(open("task") <= threads + 10, `${open("task")} threads after ${threads}`);
});

test("the command", async () => {
  const kivu = (...words) => run(process.execPath, path.join(FOLDER, "kivu.js"), ...words);
  const [version, unknown, failing] = await Promise.all([kivu("--version"), kivu("nothing"), kivu("show", "nothing")]);
  assert.deepEqual(version, await run(KIVU, "--version"));
  assert.deepEqual([unknown.code, failing.code], [2, 1]);
  const words = ["run", path.join(BUNDLES, "minilm"), "a"];
  assert.deepEqual(await kivu(...words), await run(KIVU, ...words));
  const options = { stdio: ["ignore", "pipe", "inherit"] };
  const serving = spawn(process.execPath, [path.join(FOLDER, "kivu.js"), "serve", path.join(BUNDLES, "minilm"), "--listen", "127.0.0.1:0"], options);
  try {
    let printed = "";
    let address = null;
    for await (const part of serving.stdout.setEncoding("utf8")) if ((address = (printed += part).match(/http:\/\/[\d.:]+/))) break;
    const request = { method: "POST", headers: { "content-type": "application/json" }, body: '{"inputs": "a"}' };
    same(floats(await (await fetch(`${address}/embed`, request)).json()), [await (await model("minilm")).encode("a")]);
    const ended = once(serving, "exit");
    serving.kill("SIGTERM");
    assert.deepEqual(await ended, [0, null]);
  } finally {
    serving.kill("SIGKILL");
  }
});

test("import and require return the same module", () => {
  const required = require("kivuml");
  assert.deepEqual(Object.keys(required).sort(), Object.keys(kivuml).filter((name) => name !== "default" && name !== "module.exports").sort());
  for (const [name, value] of Object.entries(required)) assert.equal(kivuml[name], value);
  const manifest = require("kivuml/package.json");
  const files = JSON.stringify([manifest.exports, manifest.bin, manifest.main, manifest.types]).match(/\.\/[\w.-]+/g);
  files.forEach((file) => assert.ok(existsSync(path.join(FOLDER, file)), file));
});

test("the types have all names, and no others", () => {
  const names = (text, pattern) => new Set([...text.matchAll(pattern)].map((found) => found[1]));
  const members = (value) => new Set(Object.getOwnPropertyNames(value).filter((name) => name !== "constructor"));
  const text = ["index.d.ts", "types.d.ts"].map((file) => readFileSync(path.join(FOLDER, file), "utf8")).join("\n");
  assert.deepEqual(names(text, /^export (?:class|function) (\w+)/gm), new Set(Object.keys(require("kivuml"))));
  const body = text.split("export class Model {")[1].split("\n}")[0];
  const declared = names(body, /^ {2}(?:readonly )?(\w+)(?:<.*?>)?[(:]/gm);
  assert.deepEqual(declared, members(kivuml.Model.prototype));
  const native = require(path.join(FOLDER, "native.js"));
  const module = readFileSync(path.join(FOLDER, "native-module.d.ts"), "utf8");
  assert.deepEqual(names(module, /^export (?:class|function) (\w+)/gm), new Set(Object.keys(native)));
  for (const name of ["Model", "Cancellation"]) {
    const own = module.split(`export class ${name} {`)[1].split("\n}")[0];
    assert.deepEqual(names(own, /^ {2}(\w+)\(/gm), members(native[name].prototype));
  }
});

/** A folder with the packages as npm installs them, and a program that prints a vector's length. */
function installed() {
  const folder = mkdtempSync(path.join(PACKAGE, "installed-"));
  const modules = path.join(folder, "node_modules");
  const nested = path.join(FOLDER, "node_modules");
  cpSync(nested, modules, { recursive: true });
  cpSync(FOLDER, path.join(modules, "kivuml"), { recursive: true, filter: (file) => !file.startsWith(nested) });
  const [platform] = readdirSync(nested);
  mkdirSync(path.join(modules, platform, "lib"));
  writeFileSync(path.join(modules, platform, "lib/libonnxruntime.so.1"), "");
  const bundle = JSON.stringify(path.join(BUNDLES, "minilm"));
  const code = `require("kivuml").load(${bundle}).then((model) => model.encode("a")).then(({ length }) => console.log(length));`;
  writeFileSync(path.join(folder, "program.cjs"), code);
  return { folder, platform };
}

test("file tracing finds the native module and its library", async () => {
  const { folder, platform } = installed();
  const { nodeFileTrace } = createRequire(path.join(TOOLS, "package.json"))("@vercel/nft");
  const { fileList } = await nodeFileTrace([path.join(folder, "program.cjs")], { base: folder });
  for (const file of ["index.js", "kivuml.node", "lib/libonnxruntime.so.1"]) {
    assert.ok(fileList.has(`node_modules/${platform}/${file}`), [...fileList].join("\n"));
  }
  const copy = mkdtempSync(path.join(PACKAGE, "traced-"));
  for (const file of fileList) cpSync(path.join(folder, file), path.join(copy, file));
  const done = await run(process.execPath, path.join(copy, "program.cjs"));
  assert.deepEqual([done.stdout, done.code], ["384\n", 0], done.stderr);
});

test("bundles of webpack find the native module, or name bundlers", async () => {
  const { folder, platform } = installed();
  const webpack = createRequire(path.join(TOOLS, "package.json"))("webpack");
  const bundled = async (name, options) => {
    const output = { path: path.join(folder, name), filename: "program.cjs" };
    const entry = path.join(folder, "program.cjs");
    const stats = await promisify(webpack)({ mode: "production", target: "node", context: folder, entry, output, ...options });
    assert.deepEqual(stats.toJson().errors, []);
    return path.join(output.path, "program.cjs");
  };
  const prints = async (file) => {
    const done = await run(process.execPath, file);
    assert.deepEqual([done.stdout, done.code], ["384\n", 0], done.stderr);
  };
  await prints(await bundled("external", { externals: { kivuml: "commonjs kivuml" } }));
  const whole = await bundled("whole");
  await prints(whole);
  const elsewhere = path.join(mkdtempSync(path.join(tmpdir(), "kivuml-")), "program.cjs");
  cpSync(whole, elsewhere);
  const refused = await run(process.execPath, elsewhere);
  assert.match(refused.stderr, /Error: cannot load the npm package `kivuml-\w+-\w+`: .*; a bundler has to leave `kivuml` out/);
  cpSync(path.join(folder, "node_modules", platform, "kivuml.node"), path.join(path.dirname(elsewhere), "kivuml.node"));
  await prints(elsewhere);
  rmSync(path.dirname(elsewhere), { recursive: true });
  rmSync(path.join(folder, "node_modules", platform), { recursive: true });
  const missing = await run(process.execPath, await bundled("missing"));
  assert.match(missing.stderr, /Error: expected the npm package .* but found neither.*; a bundler has to leave `kivuml` out/);
});

test("vectors are transferred between threads", async () => {
  const code = `
    const { parentPort, workerData } = require("node:worker_threads");
    require(workerData.package).load(workerData.bundle).then(async (model) => {
      for (const texts of workerData.texts) {
        const found = await model[workerData.method](texts, workerData.options);
        const vector = Array.isArray(found) ? found.flat()[0] : found;
        parentPort.postMessage(vector);
        const { buffer } = vector;
        parentPort.postMessage(vector, [buffer]);
        parentPort.postMessage(buffer.byteLength);
      }
    });`;
  for (const [name, method, options] of [
    ["minilm", "encode", {}],
    ["minilm", "encode", { precision: "int8" }],
    ["minilm", "encode", { precision: "ubinary" }],
    ["vectors-colbert", "multiVectors", {}],
  ]) {
    const bundle = path.join(BUNDLES, name);
    const workerData = { package: FOLDER, bundle, method, options, texts: [TEXTS[0], TEXTS.slice(0, 3)] };
    const worker = new Worker(code, { eval: true, workerData });
    const found = [];
    worker.on("message", (message) => found.push(message));
    await once(worker, "exit");
    for (const start of [0, 3]) {
      const [copied, transferred, left] = found.slice(start);
      assert.ok(copied.length > 0, JSON.stringify([name, method, options]));
      same([transferred], [copied]);
      assert.equal(left, 0);
    }
  }
});

test("the types fit the implementation and a program in TypeScript", async () => {
  const modules = path.join(TOOLS, "node_modules");
  const out = mkdtempSync(path.join(PACKAGE, "out-"));
  const compiler = path.join(modules, "typescript/bin/tsc");
  const words = ["-p", path.join(ROOT, "tests/node"), "--outDir", out, "--typeRoots", path.join(modules, "@types")];
  const compiled = await run(process.execPath, compiler, ...words);
  assert.equal(compiled.code, 0, compiled.stdout);
  const done = await run(process.execPath, path.join(out, "tests/node/usage.mjs"));
  assert.deepEqual([done.code, done.stderr], [0, ""], done.stderr);
});

test("the examples in the documentation", async () => {
  const page = readFileSync(path.join(ROOT, "docs/node.md"), "utf8");
  const blocks = [...page.matchAll(/```js\n(.*?)```/gs)].map(([, code]) => code);
  assert.ok(blocks.length > 5, `${blocks.length} blocks`);
  const names = { "sentence-transformers/all-MiniLM-L6-v2": "minilm", "BAAI/bge-small-en-v1.5": "minilm" };
  let code = blocks.join("\n").replace(/import .* from "kivuml";\n/g, "");
  for (const [, name] of code.matchAll(/"([\w/.-]+)"/g)) {
    const bundle = path.join(BUNDLES, names[name] ?? name);
    if (existsSync(bundle)) code = code.replaceAll(`"${name}"`, JSON.stringify(bundle));
  }
  const done = await program(`import { KivuError } from ${JSON.stringify(ENTRY)};${code}`);
  assert.deepEqual([done.code, done.stderr], [0, ""], done.stderr);
});
