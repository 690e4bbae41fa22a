// Uses the package in TypeScript. The test compiles this file, which checks the types of arguments and results, and runs
// it, which checks that results have them. Lines that must not compile are marked.

import assert from "node:assert/strict";
import { InvalidError, KivuError, load, type Entity, type Model, type Prediction, type Rank, type Redacted, type Restored, type Token } from "kivuml";

const bundles = process.env.TEST_BUNDLES;
const open = (name: string): Promise<Model> => load(`${bundles}/${name}`, { engine: "auto", threads: 2 });

/** Checks an object's fields against those that its type has. */
function has<T extends object>(value: T, fields: { [Name in keyof Required<T>]: string[] }): void {
  for (const [name, found] of Object.entries(value)) {
    const types = (fields as Record<string, string[]>)[name];
    assert.ok(types?.includes(found === null ? "null" : typeof found), `${name}: ${typeof found}`);
  }
  const required = Object.entries(fields as Record<string, string[]>).filter(([, types]) => !types.includes("undefined"));
  for (const [name] of required) assert.ok(name in value, name);
}
const prediction = { label: ["string"], score: ["number"] };
const entity = {
  entity_group: ["string", "undefined"], entity: ["string", "undefined"], index: ["number", "undefined"],
  score: ["number"], word: ["string"], start: ["number"], end: ["number"],
};

const minilm = await open("minilm");
const description: [string, string, number, number | null, string[], string | null, string | null] = [
  minilm.name, minilm.task, minilm.maxTokens, minilm.dimensions, minilm.prompts, minilm.queryPrompt, minilm.documentPrompt,
];
assert.deepEqual(description, ["minilm", "feature-extraction", 256, 384, [], null, null]);
const single: Float32Array = await minilm.encode("a");
const many: Float32Array[] = await minilm.encode(new Set(["a", "b"]), { normalize: true, dimensions: 64 });
const small: Int8Array[] = await minilm.encode(["a"], { precision: "int8" });
const bits: Uint8Array = await minilm.encode("a", { precision: "ubinary", onProgress: (done: number, total: number) => assert.ok(done <= total) });
assert.deepEqual([single.length, many[1].length, small[0].length, bits.length], [384, 64, 384, 48]);
assert.ok(small[0] instanceof Int8Array && bits instanceof Uint8Array);
const tokens: Float32Array[] = await minilm.multiVectors("a");
assert.equal(tokens[0].length, minilm.dimensions);
const pieces: Token[] = await minilm.tokenize("a cat", { addSpecialTokens: true });
pieces.forEach((piece) => has(piece, { id: ["number"], text: ["string"], special: ["boolean"], start: ["number", "null"], stop: ["number", "null"] }));
const ranks: Rank[] = await minilm.rank("a", ["b", "c"], { topK: 1, returnDocuments: true, signal: new AbortController().signal });
ranks.forEach((rank) => has(rank, { index: ["number"], score: ["number"], text: ["string", "undefined"] }));

const sentiment = await open("sentiment");
const labels: string[] | null = sentiment.labels;
assert.equal(labels?.length, 3);
const predictions: Prediction[][] = await sentiment.classify(["good", ["good", "bad"] as const], { topK: 2, functionToApply: "softmax" });
predictions.flat().forEach((found) => has(found, prediction));
const zero: Prediction[] = await (await open("zero-shot")).zeroShot("a", new Set(["b", "c"]), { multiLabel: true });
zero.forEach((found) => has(found, prediction));

const ner = await open("ner");
const found: Entity[] = await ner.entities("Ada lived in London.");
found.forEach((each) => has(each, entity));
const raw: Entity[][] = await ner.entities(["Ada lived in London."], { aggregation: "none", redact: false });
raw.flat().forEach((each) => has(each, entity));
const redacted: Redacted = await ner.entities("Ada lived in London.", { redact: true });
has(redacted, { text: ["string"], entities: ["object"], mapping: ["object", "undefined"] });
const numbered: Redacted = await ner.entities("Write to ann@example.org.", { redact: true, style: "number", scope: "request", mapping: {}, patterns: "EMAIL_ADDRESS" });
assert.equal(numbered.mapping?.["[EMAIL_ADDRESS_1]"], "ann@example.org");
const back: Restored = await ner.restore("Ask [EMAIL_ADDRESS_1].", { mapping: numbered.mapping });
assert.equal(back.text, "Ask ann@example.org.");

const splade = await open("vectors-splade");
const weights: Map<number, number> = await splade.sparse("a");
const words: Map<string | number, number> = await splade.sparse("a", { words: true });
assert.ok([...weights].every(([id, weight]) => typeof id === "number" && typeof weight === "number"));
assert.equal(words.size, weights.size);
const values: Record<string, unknown> = await (await open("extract")).extract("Ada lived in London.", { entities: ["city"] });
assert.equal(typeof values, "object");
const forTask: Float32Array = await (await open("tasks")).encode("a", { task: "separation" });
assert.equal(forTask.length, 32);
const text: string = await (await open("summary")).summarize("a", { generation: { max_new_tokens: 2 } });
assert.equal(typeof text, "string");

// Never called: these must not compile.
export async function wrong(model: Model): Promise<void> {
  // @ts-expect-error
  await model.encode(7);
  // @ts-expect-error
  await model.encode("a", { prompt_name: "query" });
  // @ts-expect-error
  await model.extract("a");
  // @ts-expect-error
  await model.encode("a", { precision: "int4" });
  // @ts-expect-error
  (await model.encode("a", { precision: "int8" })) satisfies Float32Array;
  // @ts-expect-error
  await model.rank("a", "b", { top_k: 1 });
  // @ts-expect-error
  await model.translate("a", "en", "pt");
  // @ts-expect-error
  new (model.constructor as typeof import("kivuml").Model)();
  // @ts-expect-error
  model.name = "b";
}

await assert.rejects(minilm.encode([]), (error: unknown) => error instanceof InvalidError && error instanceof KivuError && error.code === "ERR_KIVU_INVALID");
[minilm, sentiment, ner, splade].forEach((model) => model.close());
