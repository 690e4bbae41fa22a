// Uses the worker in examples/edge in workerd, with a static model and a small transformer.
//
//     TEST_BUNDLES=FOLDER TEST_WASM=target/wasm TEST_WORKERD=PROGRAM \
//       TEST_URL=http://127.0.0.1:8080 node tests/wasm/workerd.test.mjs

import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";

import { residentBytes, serve } from "./worker.mjs";

const { TEST_BUNDLES: BUNDLES, TEST_WASM, TEST_WORKERD: WORKERD } = process.env;
const URL_OF_SERVER = process.env.TEST_URL.replace(/\/$/, "");
const TEXTS = ["The ferry leaves at seven.", "猫 🐈", "A cat sat on the mat."];
/** The process's memory beyond a worker's that has answered no embeddings, in bytes: with compiled code and free buffers. */
const MAX_MEMORY = 128 * 1024 * 1024;

async function post(url, body, text = JSON.stringify(body)) {
  const response = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: text });
  return { status: response.status, body: await response.json() };
}

const floats = (base64) => new Float32Array(Uint8Array.from(Buffer.from(base64, "base64")).buffer);

for (const model of ["vectors-static", "minilm"]) {
  test(`${model} answers OpenAI's route`, { timeout: 120_000 }, async (context) => {
    const { url, pid, end } = await serve({ workerd: WORKERD, package: TEST_WASM, bundle: path.join(BUNDLES, model) });
    context.after(end);
    const before = residentBytes(pid);
    const { status, body } = await post(`${url}/v1/embeddings`, { input: TEXTS, model: "any" });
    assert.equal(status, 200, JSON.stringify(body));
    const expected = await post(`${URL_OF_SERVER}/v1/embeddings`, { input: TEXTS, model });
    assert.deepEqual(Object.keys(body), Object.keys(expected.body));
    assert.deepEqual(body.usage, expected.body.usage);
    body.data.forEach(({ object, index, embedding }, place) => {
      assert.deepEqual([object, index], ["embedding", place]);
      assert.deepEqual(embedding.map(Math.fround), expected.body.data[place].embedding.map(Math.fround));
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
    const memory = residentBytes(pid) - before;
    context.diagnostic(`${model}: ${Math.round(memory / 1e6)} MB more after 250 texts`);
    assert.ok(memory <= MAX_MEMORY, `${memory} bytes`);
  });
}
