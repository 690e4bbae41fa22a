// Uses the worker in examples/edge in workerd, with a static model and a small transformer.
//
//     TEST_BUNDLES=FOLDER TEST_WASM=target/wasm TEST_WORKERD=.kivu/wasm/tools/node_modules/.bin/workerd \
//       TEST_URL=http://127.0.0.1:8080 node tests/wasm/workerd.test.mjs

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const { TEST_BUNDLES: BUNDLES, TEST_WASM, TEST_WORKERD: WORKERD } = process.env;
const URL_OF_SERVER = process.env.TEST_URL.replace(/\/$/, "");
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const TEXTS = ["The ferry leaves at seven.", "猫 🐈", "A cat sat on the mat."];
/** Memory beyond that of a worker that has answered no embeddings, in bytes. */
const MAX_MEMORY = 128 * 1024 * 1024;

async function freePort() {
  const server = createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address();
  server.close();
  return port;
}

/** Serves the example with a model, and ends it after the tests. */
async function started(model) {
  const folder = mkdtempSync(path.join(tmpdir(), "kivuml-edge-"));
  for (const file of ["worker.js", "config.capnp"]) cpSync(path.join(ROOT, "examples/edge", file), path.join(folder, file));
  mkdirSync(path.join(folder, "node_modules"));
  symlinkSync(path.resolve(ROOT, TEST_WASM), path.join(folder, "node_modules/kivuml-wasm"));
  cpSync(path.join(BUNDLES, model), path.join(folder, "model"), { recursive: true, dereference: true });
  const address = `127.0.0.1:${await freePort()}`;
  const words = ["serve", "config.capnp", "--experimental", `--socket-addr=http=${address}`];
  const worker = spawn(WORKERD, words, { cwd: folder, stdio: ["ignore", "inherit", "inherit"] });
  after(() => {
    worker.kill("SIGKILL");
    rmSync(folder, { recursive: true });
  });
  const url = `http://${address}`;
  for (let wait = 0; wait < 200; wait++) {
    if (await fetch(url).then(() => true, () => false)) return { url, worker };
    await delay(50);
  }
  throw new Error("expected workerd to serve, but it does not");
}

async function post(url, body, text = JSON.stringify(body)) {
  const response = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: text });
  return { status: response.status, body: await response.json() };
}

const resident = ({ pid }) => Number(readFileSync(`/proc/${pid}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1]) * 1024;
const floats = (base64) => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);

function cosine(left, right) {
  const product = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
  return product(left, right) / Math.sqrt(product(left, left) * product(right, right));
}

for (const model of ["vectors-static", "minilm"]) {
  test(`${model} answers OpenAI's route`, { timeout: 120_000 }, async (context) => {
    const { url, worker } = await started(model);
    const before = resident(worker);
    const { status, body } = await post(`${url}/v1/embeddings`, { input: TEXTS, model: "any" });
    assert.equal(status, 200, JSON.stringify(body));
    const expected = await post(`${URL_OF_SERVER}/v1/embeddings`, { input: TEXTS, model });
    assert.deepEqual(Object.keys(body), Object.keys(expected.body));
    assert.deepEqual(body.usage, expected.body.usage);
    body.data.forEach(({ object, index, embedding }, place) => {
      assert.deepEqual([object, index], ["embedding", place]);
      assert.ok(cosine(embedding, expected.body.data[place].embedding) >= 0.99999);
    });
    const packed = await post(`${url}/v1/embeddings`, { input: TEXTS[0], encoding_format: "base64" });
    assert.deepEqual([...floats(packed.body.data[0].embedding)], body.data[0].embedding.map(Math.fround));
    for (const [path, text, code, message] of [
      ["/v1/embeddings", '{"input": 7}', 400, "expected `texts[0]` to be a string, but found `number`"],
      ["/v1/embeddings", '{"input": [""]}', 400, "expected a text in `texts[0]`, but found an empty one"],
      ["/v1/embeddings", '{"input": []}', 400, "expected at least one text in `texts`, but found none"],
      ["/v1/embeddings", "{", 400, "expected a JSON body, but found another one"],
      ["/v1/embeddings", JSON.stringify({ input: Array(65).fill("a") }), 413, "expected at most 64 texts in `input`, but found 65"],
      ["/v1/models", "{}", 404, "expected `/v1/embeddings`, but found `/v1/models`"],
    ]) {
      const failed = await post(url + path, undefined, text);
      assert.deepEqual([failed.status, failed.body.error.message], [code, message]);
    }
    for (let first = 0; first < 250; first += 50) {
      const input = Array.from({ length: 50 }, (_, number) => `${"some words ".repeat(1 + ((first + number) % 20))}${number}`);
      assert.equal((await post(`${url}/v1/embeddings`, { input })).status, 200);
    }
    const memory = resident(worker) - before;
    context.diagnostic(`${model}: ${Math.round(memory / 1e6)} MB more after 250 texts`);
    assert.ok(memory <= MAX_MEMORY, `${memory} bytes`);
  });
}
