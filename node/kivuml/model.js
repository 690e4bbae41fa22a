"use strict";
// Models, in Node.js and in WebAssembly: `native.js` is another one there.

const { asJson, asList, asOptions, asText, quoted, typeName } = require("./arguments.js");
const { classes, fromNative, wrongType } = require("./errors.js");
const native = require("./native.js");

/** Texts that one call of the native module runs: fewer in WebAssembly, which occupies the event loop. */
const BATCH = native.batch ?? 1024;
/** The same for generated texts, which take longer. */
const GENERATED = 64;
const ARRAYS = { float32: Float32Array, int8: Int8Array, uint8: Uint8Array, binary: Int8Array, ubinary: Uint8Array };
/** Options of calls that run batches. */
const RUN = /** @type {const} */ (["signal", "onProgress"]);
/** Only `opened` has it, so that nothing else constructs models. */
const OPENED = Symbol("opened");

/** @typedef {import("./index").Model} Declared */
/** @typedef {import("./native-module").Cancellation} Cancellation */
/** @typedef {import("./native-module").Task} Task */
/** @typedef {{ signal?: AbortSignal, onProgress?: (done: number, total: number) => void }} Run */

/** @implements {Declared} */
class Model {
  #native;
  #description;

  /**
   * @param {symbol} key
   * @param {import("./native-module").Model} opened
   */
  constructor(key, opened) {
    if (key !== OPENED) throw wrongType("expected a model from `load`, but found a call of its constructor");
    this.#native = opened;
    this.#description = JSON.parse(opened.description());
  }

  get name() {
    return this.#description.name;
  }

  get task() {
    return this.#description.task;
  }

  get maxTokens() {
    return this.#description.max_tokens;
  }

  get dimensions() {
    return this.#description.dimensions;
  }

  get similarity() {
    return this.#description.similarity;
  }

  get labels() {
    return this.#description.labels;
  }

  get prompts() {
    return this.#description.prompts ?? [];
  }

  get tasks() {
    return this.#description.tasks ?? [];
  }

  get queryPrompt() {
    return this.#description.query_prompt;
  }

  get documentPrompt() {
    return this.#description.document_prompt;
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").EncodeOptions} [options]
   * @returns {Promise<any>}
   */
  async encode(texts, options) {
    const prompts = /** @type {const} */ (["promptName", "prompt", "instruction", "task"]);
    const known = /** @type {const} */ ([...prompts, "dimensions", "normalize", "precision", "truncate", ...RUN]);
    const { promptName, prompt, instruction, task, dimensions, normalize, ...others } = asOptions(options, known);
    const { precision = "float32", truncate, ...run } = others;
    if (typeof precision !== "string" || !Object.hasOwn(ARRAYS, precision)) {
      const found = String(JSON.stringify(precision)).slice(0, 40);
      throw new classes.InvalidError(`expected \`precision\` among ${quoted(Object.keys(ARRAYS))}, but found ${found}`);
    }
    const parameters = {
      prompt_name: promptName,
      prompt,
      instruction,
      task,
      dimensions,
      normalize,
      output_dtype: precision === "float32" ? undefined : precision,
      outputs: ["dense"],
      truncate,
    };
    const { texts: listed, isSingle } = asList(texts, "texts");
    const batches = await this.#batches("encode", listed, parameters, run);
    // One buffer for all vectors. Node.js does not transfer the native module's own buffers to other threads.
    const all = joined(batches.map(({ values }) => values), ARRAYS[/** @type {keyof typeof ARRAYS} */ (precision)]);
    const vectors = rows(all, all.length / listed.length, listed.length);
    return isSingle ? vectors[0] : vectors;
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").MultiVectorOptions} [options]
   * @returns {Promise<any>}
   */
  async multiVectors(texts, options) {
    const known = /** @type {const} */ (["promptName", "normalize", "truncate", ...RUN]);
    const { promptName, normalize, truncate, ...run } = asOptions(options, known);
    const parameters = { prompt_name: promptName, normalize, truncate };
    return this.#each("multi_vectors", asList(texts, "texts"), parameters, run, BATCH, split);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").SparseOptions} [options]
   * @returns {Promise<any>}
   */
  async sparse(texts, options) {
    const known = /** @type {const} */ (["promptName", "maxActiveDims", "words", "truncate", ...RUN]);
    const { promptName, maxActiveDims, words, truncate, ...run } = asOptions(options, known);
    const parameters = { prompt_name: promptName, max_active_dims: maxActiveDims, words, outputs: ["sparse"], truncate };
    /** @param {string} json */
    const read = (json) => JSON.parse(json).map((/** @type {[number | string, number][]} */ weights) => new Map(weights));
    return this.#each("sparse", asList(texts, "texts"), parameters, run, BATCH, read);
  }

  /**
   * @param {string} query
   * @param {Iterable<string>} documents
   * @param {import("./index").RankOptions} [options]
   */
  async rank(query, documents, options) {
    const prompts = /** @type {const} */ (["instruction", "prompt"]);
    const known = /** @type {const} */ (["topK", ...prompts, "rawScores", "returnDocuments", "truncate", "signal"]);
    const { topK, instruction, prompt, rawScores, returnDocuments, truncate, signal } = asOptions(options, known);
    const parameters = asJson({ top_k: topK, instruction, prompt, raw_scores: rawScores, truncate });
    if (![true, false, undefined, null].includes(returnDocuments)) {
      throw wrongType(`expected \`returnDocuments\` to be a boolean, but found ${typeName(returnDocuments)}`);
    }
    const text = asText(query, "query");
    const { texts: listed } = asList(documents, "documents");
    const inputs = [text, ...listed];
    const found = await cancellable(signal, (cancellation) => this.#native.run("rank", inputs, 0, parameters, cancellation));
    /** @type {import("./index").Rank[]} */
    const ranks = JSON.parse(found);
    return returnDocuments ? ranks.map((rank) => ({ ...rank, text: listed[rank.index] })) : ranks;
  }

  /**
   * @param {string | Iterable<string | readonly [string, string]>} texts
   * @param {import("./index").ClassifyOptions} [options]
   * @returns {Promise<any>}
   */
  async classify(texts, options) {
    const known = /** @type {const} */ (["topK", "functionToApply", "truncate", ...RUN]);
    const { topK, functionToApply, truncate, ...run } = asOptions(options, known);
    const parameters = { top_k: topK, function_to_apply: functionToApply, truncate };
    return this.#each("classify", asList(texts, "texts", true), parameters, run);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {string | Iterable<string>} labels
   * @param {import("./index").ZeroShotOptions} [options]
   * @returns {Promise<any>}
   */
  async zeroShot(texts, labels, options) {
    const known = /** @type {const} */ (["multiLabel", "template", "prompt", "truncate", ...RUN]);
    const { multiLabel, template, prompt, truncate, ...run } = asOptions(options, known);
    const parameters = {
      candidate_labels: asLabels(labels, "labels"),
      multi_label: multiLabel,
      hypothesis_template: template,
      prompt,
      truncate,
    };
    return this.#each("zero_shot", asList(texts, "texts"), parameters, run);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").EntityOptions} [options]
   * @returns {Promise<any>}
   */
  async entities(texts, options) {
    const known = /** @type {const} */ (["labels", "patterns", "redact", "style", "scope", "mapping", "key", "aggregation", "transitionBiases", "threshold", "stride", "truncate", ...RUN]);
    const { labels, patterns, redact, style, scope, mapping, key, aggregation, transitionBiases, threshold, stride, truncate, ...run } = asOptions(options, known);
    const parameters = {
      labels: labels === undefined || labels === null ? undefined : asLabels(labels, "labels"),
      patterns: patterns === undefined || patterns === null ? undefined : asLabels(patterns, "patterns"),
      redact,
      redact_style: style,
      redact_scope: scope,
      redact_mapping: mapping,
      redact_key: key,
      aggregation_strategy: aggregation,
      transition_biases: transitionBiases,
      threshold,
      stride,
      truncate,
    };
    // A batch does not know the numbers of the one before.
    return this.#each("entities", asList(texts, "texts"), parameters, run, scope === "request" ? Infinity : BATCH);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").RestoreOptions} options
   * @returns {Promise<any>}
   */
  async restore(texts, options) {
    const { mapping, key, ...run } = asOptions(options, /** @type {const} */ (["mapping", "key", ...RUN]));
    return this.#each("restore", asList(texts, "texts"), { redact_mapping: mapping, redact_key: key }, run);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").Schema} schema
   * @param {import("./index").ExtractOptions} [options]
   * @returns {Promise<any>}
   */
  async extract(texts, schema, options) {
    const known = /** @type {const} */ (["form", "threshold", "confidence", "spans", "truncate", ...RUN]);
    const { form, threshold, confidence, spans, truncate, ...run } = asOptions(options, known);
    const parameters = {
      task: form,
      schema,
      threshold,
      include_confidence: confidence,
      include_spans: spans,
      truncate,
    };
    return this.#each("extract", asList(texts, "texts"), parameters, run);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").TranslateOptions} [options]
   * @returns {Promise<any>}
   */
  async translate(texts, options) {
    const known = /** @type {const} */ (["source", "target", "generation", "truncate", ...RUN]);
    const { source, target, generation, truncate, ...run } = asOptions(options, known);
    const parameters = { src_lang: source, tgt_lang: target, split: "sentences", generate_parameters: generation, truncate };
    return this.#generated("translate", texts, parameters, run);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").GenerateOptions} [options]
   * @returns {Promise<any>}
   */
  async generate(texts, options) {
    const { generation, truncate, ...run } = asOptions(options, /** @type {const} */ (["generation", "truncate", ...RUN]));
    return this.#generated("generate", texts, { generate_parameters: generation, truncate }, run);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").GenerateOptions} [options]
   * @returns {Promise<any>}
   */
  async summarize(texts, options) {
    return this.generate(texts, options);
  }

  /**
   * @param {string | Iterable<string>} texts
   * @param {import("./index").TokenizeOptions} [options]
   * @returns {Promise<any>}
   */
  async tokenize(texts, options) {
    const known = /** @type {const} */ (["promptName", "prompt", "instruction", "task", "addSpecialTokens", ...RUN]);
    const { promptName, addSpecialTokens, prompt, instruction, task, ...run } = asOptions(options, known);
    const parameters = { prompt_name: promptName, prompt, instruction, task, add_special_tokens: addSpecialTokens };
    return this.#each("tokenize", asList(texts, "texts"), parameters, run);
  }

  close() {
    this.#native.close();
  }

  /**
   * Runs batches of texts; returns what the native module returns for each.
   *
   * @param {Task} task
   * @param {any[]} texts
   * @param {Record<string, unknown>} parameters
   * @param {Run} run
   * @returns {Promise<any[]>}
   */
  async #batches(task, texts, parameters, { signal, onProgress }, size = BATCH) {
    const json = asJson(parameters);
    if (onProgress !== undefined && onProgress !== null && typeof onProgress !== "function") {
      throw wrongType(`expected \`onProgress\` to be a function, but found ${typeName(onProgress)}`);
    }
    return cancellable(signal, async (cancellation) => {
      const found = [];
      for (let first = 0; first < texts.length; first += size) {
        signal?.throwIfAborted();
        const batch = texts.length > size ? texts.slice(first, first + size) : texts;
        found.push(await this.#native.run(task, batch, first, json, cancellation));
        onProgress?.(first + batch.length, texts.length);
      }
      return found;
    });
  }

  /**
   * A result per text, or the result for a single text.
   *
   * @param {Task} task
   * @param {{ texts: any[], isSingle: boolean }} listed
   * @param {Record<string, unknown>} parameters
   * @param {Run} run
   * @param {number} [size]
   * @param {(found: any) => any[]} [read] Reads a batch's results.
   */
  async #each(task, { texts, isSingle }, parameters, run, size, read = JSON.parse) {
    const batches = await this.#batches(task, texts, parameters, run, size);
    const found = batches.flatMap((batch) => read(batch));
    return isSingle ? found[0] : found;
  }

  /**
   * A text per text, or the text for a single one.
   *
   * @param {"translate" | "generate"} task
   * @param {unknown} texts
   * @param {Record<string, unknown> & { generate_parameters?: Record<string, unknown> | null }} parameters
   * @param {Run} run
   */
  async #generated(task, texts, parameters, run) {
    // A text's samples depend on the seed and on its position in the call.
    const size = parameters.generate_parameters?.seed == null ? GENERATED : Infinity;
    return this.#each(task, asList(texts, "texts"), parameters, run, size);
  }
}

// For `using model = await load(…)`, where the version of Node.js has it.
if (Symbol.dispose) Object.defineProperty(Model.prototype, Symbol.dispose, { value: Model.prototype.close });

/**
 * A model of the native module.
 *
 * @param {import("./native-module").Model} model
 */
function opened(model) {
  return new Model(OPENED, model);
}

/**
 * Runs a call that ends with the signal's reason once it is aborted.
 *
 * @template T
 * @param {AbortSignal | null | undefined} signal
 * @param {(cancellation?: Cancellation) => Promise<T>} run
 * @returns {Promise<T>}
 */
async function cancellable(signal, run) {
  if (signal === undefined || signal === null) return run().catch(rethrow);
  if (!(signal instanceof AbortSignal)) {
    throw wrongType(`expected \`signal\` to be an AbortSignal, but found ${typeName(signal)}`);
  }
  signal.throwIfAborted();
  const cancellation = new native.Cancellation();
  const cancel = () => cancellation.cancel();
  signal.addEventListener("abort", cancel);
  try {
    return await run(cancellation);
  } catch (error) {
    signal.throwIfAborted();
    return rethrow(error);
  } finally {
    signal.removeEventListener("abort", cancel);
  }
}

/** @param {unknown} error @returns {never} */
function rethrow(error) {
  throw fromNative(error);
}

/** @param {unknown} labels @param {string} argument @returns {unknown} A list, or a text with commas between labels. */
function asLabels(labels, argument) {
  return typeof labels === "string" ? labels : asList(labels, argument).texts;
}

/**
 * @param {{ values: Float32Array, counts: number[] }} found
 * @returns {Float32Array[][]} Each text's vectors, in one buffer.
 */
function split({ values, counts }) {
  const all = values.slice();
  const width = all.length / counts.reduce((sum, count) => sum + count, 0);
  let end = 0;
  return counts.map((count) => {
    const first = end;
    end += count * width;
    return rows(all.subarray(first, end), width, count);
  });
}

/**
 * @template {Float32Array | Int8Array | Uint8Array} A
 * @param {A} values
 * @param {number} width
 * @param {number} count
 * @returns {A[]} Views of the values' buffer.
 */
function rows(values, width, count) {
  return Array.from({ length: count }, (_, row) => /** @type {A} */ (values.subarray(row * width, (row + 1) * width)));
}

/**
 * @param {any[]} parts
 * @param {typeof ARRAYS[keyof typeof ARRAYS]} type
 */
function joined(parts, type) {
  const all = new type(parts.reduce((sum, part) => sum + part.length, 0));
  let first = 0;
  for (const part of parts) {
    all.set(part, first);
    first += part.length;
  }
  return all;
}

module.exports = { Model, cancellable, opened };
