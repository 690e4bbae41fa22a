// The WebAssembly module, with the functions of the native module for Node.js.
//
// All models share an instance. One that panicked, or had no memory, cannot be used again: its models reject calls, and the
// next model gets another instance.

import start, {
  __wbg_reset_state as restart,
  IncomingModel,
  instructionsInUse,
  memoryBytes,
  useInstructions,
} from "./kivuml_wasm.js";

/** Texts per call, between which other events are handled. */
export const batch = 16;
/** The longest time without other events, in milliseconds, apart from a single call. */
const MAX_BUSY = 50;
const NO_MEMORY = "the memory cannot grow";
/** A module that only hosts with relaxed SIMD accept: a function with `f32x4.relaxed_madd`. */
const RELAXED = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 0, 253, 15, 65, 0, 253, 15, 65, 0,
  253, 15, 253, 133, 2, 11,
]);

/** A file in the manifest of a bundle for Kivu's engine, as `kivu build` writes it. */
const FILE = /^name = "([^"\\]+)"\nsize = (\d+)\nsha256 = "\w+"\nblake3 = "(\w+)"$/gm;
const ENGINE = /^engine = "native"$/m;

/** @typedef {import("./index.js").ModuleSource} ModuleSource */
/** @typedef {import("./kivuml_wasm.js").Model} Opened */
/** @typedef {import("./native.js").Take} Take */
/** @typedef {import("./native.js").Read} Read */

/** @type {ModuleSource | undefined} */
let source;
/** @type {string | undefined} */
let instructions;
/** The instance, once it is asked for. @type {Promise<{ ended?: string }> | undefined} */
let instance;
/** The values in the instance. @type {Set<{ __destroy_into_raw(): number }>} */
const owned = new Set();
let lastTurn = 0;

/** Calls end between batches, where the signal is checked. */
export class Cancellation {
  cancel() {}
}

/**
 * Names the module, if it is not next to this file, and the engine's instructions, which tests choose.
 *
 * @param {ModuleSource} module
 * @param {string} [chosen]
 */
export function use(module, chosen) {
  source = module;
  instructions = chosen;
}

/** The size of the instance's memory, in bytes. */
export function memory() {
  return memoryBytes();
}

/** The instructions that the instance uses. */
export function instructionSet() {
  return instructionsInUse();
}

/**
 * Opens a bundle. The instance starts while its largest file arrives.
 *
 * @param {string | Promise<string>} manifest Its text.
 * @param {Read} read
 * @param {ModuleSource} [module]
 */
export async function open(manifest, read, module) {
  const starting = started(module);
  // Its error is thrown after the manifest's.
  starting.catch(() => {});
  const text = await manifest;
  const largest = new Arriving(text, read);
  try {
    const running = await starting;
    const incoming = call(running, () => new IncomingModel(text));
    owned.add(incoming);
    try {
      await fill(running, incoming, largest, read);
    } catch (error) {
      if (owned.delete(incoming)) incoming.free();
      throw error;
    }
    owned.delete(incoming);
    return new Model(running, call(running, () => incoming.open()));
  } finally {
    largest.end();
  }
}

/**
 * Reads all files that a model needs.
 *
 * @param {{ ended?: string }} running
 * @param {IncomingModel} incoming
 * @param {Arriving} largest
 * @param {Read} read
 */
async function fill(running, incoming, largest, read) {
  /** @param {string} name @returns {Take} */
  const taking = (name) => (piece) =>
    call(running, () => {
      // It is freed when another file fails, whose error the caller gets.
      if (!owned.has(incoming)) throw coded("ModelError", `expected all files before \`${name}\` ended, but one failed`);
      incoming.fill(name, piece);
    });
  const required = call(running, () => incoming.required());
  const files = [];
  for (let place = 0; place < required.length; place += 2) {
    const [name, hash] = required.slice(place, place + 2);
    files.push(largest.is(name, hash) ? largest.pass(taking(name)) : read(name, hash, taking(name)));
  }
  await Promise.all(files);
}

/** The largest file in a manifest, whose pieces are kept until something takes them. */
class Arriving {
  #name;
  #hash;
  /** @type {Uint8Array[]} */
  #pieces = [];
  /** @type {Take} */
  #take = (piece) => this.#pieces.push(piece);
  #done;

  /** @param {string} manifest @param {Read} read */
  constructor(manifest, read) {
    const found = ENGINE.test(manifest) ? Array.from(manifest.matchAll(FILE)) : [];
    const [largest] = found.sort(([, , left], [, , right]) => Number(right) - Number(left));
    if (!largest) return;
    [, this.#name, , this.#hash] = largest;
    this.#done = read(this.#name, this.#hash, (piece) => this.#take(piece));
    // Its error is thrown by `pass`.
    this.#done.catch(() => {});
  }

  /** @param {string} name @param {string} hash */
  is(name, hash) {
    return name === this.#name && hash === this.#hash;
  }

  /** Passes all pieces on. @param {Take} take */
  async pass(take) {
    this.#pieces.splice(0).forEach(take);
    this.#take = take;
    await this.#done;
  }

  /** Ends the reading, if nothing takes the pieces. */
  end() {
    this.#pieces = [];
    this.#take = () => {
      throw coded("ModelError", `expected a model that takes \`${this.#name}\`, but it failed`);
    };
  }
}

/** A model in an instance. */
export class Model {
  #running;
  /** @type {Opened | undefined} */
  #opened;
  #description;
  #calls = 0;
  #isClosed = false;

  /** @param {{ ended?: string }} running @param {Opened} opened */
  constructor(running, opened) {
    this.#running = running;
    this.#opened = opened;
    owned.add(opened);
    this.#description = call(running, () => opened.description());
  }

  description() {
    return this.#description;
  }

  /**
   * @param {string} task
   * @param {(string | string[])[]} inputs
   * @param {number} first
   * @param {string} parameters
   * @returns {Promise<any>}
   */
  async run(task, inputs, first, parameters) {
    if (this.#isClosed) {
      const { name } = JSON.parse(this.#description);
      throw coded("ClosedError", `expected an open model, but \`${name}\` is closed; load it again`);
    }
    this.#calls += 1;
    try {
      if (performance.now() - lastTurn > MAX_BUSY) await turn();
      return call(this.#running, () => /** @type {Opened} */ (this.#opened).run(task, inputs, first, parameters));
    } finally {
      this.#calls -= 1;
      if (this.#isClosed) this.close();
    }
  }

  close() {
    this.#isClosed = true;
    if (this.#calls > 0 || !this.#opened) return;
    if (owned.delete(this.#opened)) this.#opened.free();
    this.#opened = undefined;
  }
}

/**
 * The instance, which is made for the first model.
 *
 * @param {ModuleSource} [module]
 */
function started(module) {
  instance ??= instantiate(module ?? source).catch((error) => {
    instance = undefined;
    throw error;
  });
  return instance;
}

/** @param {ModuleSource} [module] */
async function instantiate(module) {
  await start({ module_or_path: await loadable(module ?? suitable()) });
  return begun();
}

/** The package's module for this host. */
function suitable() {
  if (WebAssembly.validate(RELAXED)) return new URL("kivuml-relaxed.wasm", import.meta.url);
  return new URL("kivuml.wasm", import.meta.url);
}

function begun() {
  const running = {};
  if (instructions !== undefined) call(running, () => useInstructions(/** @type {string} */ (instructions)));
  return running;
}

/** @param {ModuleSource} module */
async function loadable(module) {
  const url = typeof module === "string" ? new URL(module, globalThis.location?.href) : module;
  if (!(url instanceof URL) || url.protocol !== "file:") return url;
  const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
  return readFile(url);
}

/**
 * Calls the instance. An error without a class of errors is its end.
 *
 * @template T
 * @param {{ ended?: string }} running
 * @param {() => T} work
 * @returns {T}
 */
function call(running, work) {
  if (running.ended !== undefined) {
    throw coded("InferenceError", `expected a running instance, but it has ended; load the model again: ${running.ended}`);
  }
  try {
    return work();
  } catch (/** @type {any} */ error) {
    if (typeof error?.code === "string") throw error;
    running.ended = String(error?.message ?? error);
    // They must not be freed in another instance.
    owned.forEach((value) => value.__destroy_into_raw());
    owned.clear();
    restart();
    instance = Promise.resolve(begun());
    if (running.ended.startsWith(NO_MEMORY)) throw coded("TooLargeError", running.ended);
    throw coded("InferenceError", running.ended.startsWith("the model") ? running.ended : `the model could not be run: ${running.ended}`);
  }
}

/** Lets other events be handled. */
async function turn() {
  await new Promise((resolve) => (globalThis.setImmediate ? setImmediate(resolve) : setTimeout(resolve, 0)));
  lastTurn = performance.now();
}

/**
 * @param {string} code
 * @param {string} message
 */
function coded(code, message) {
  return Object.assign(new Error(message), { code });
}
