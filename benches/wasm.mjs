// Compares the npm package for WebAssembly with transformers.js on onnxruntime-web, both with one thread: start to the
// first vector, texts per second, and memory, in Node.js and in Chromium. Measures the worker in examples/edge in workerd.
//
//     node benches/wasm.mjs --package target/wasm --bundle FOLDER --peers FOLDER --models FOLDER
//       [--chromium PROGRAM] [--workerd PROGRAM --table FOLDER]
//
// `bundle` is an encoder's, and `table` one with static embeddings. `peers` has @huggingface/transformers and
// onnxruntime-web in `node_modules`. `models` has the folder `minilm` with the bundle's model, as transformers.js takes it:
// `onnx/model_quantized.onnx` (q8) with its tokenizer. Both sides take turns; ratios are medians of pairs. Needs Node.js
// 22.15 or newer.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { cpus, tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { brotliCompressSync, gzipSync } from "node:zlib";

import { residentBytes, serve } from "../tests/wasm/worker.mjs";

const names = ["package", "bundle", "peers", "models", "chromium", "workerd", "table"];
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
const [PACKAGE, BUNDLE, PEERS, MODELS, CHROMIUM, WORKERD, TABLE] = names.map((name) => values[name] && path.resolve(values[name]));
const HOOKS = fileURLToPath(new URL("wasm_peer_hooks.mjs", import.meta.url));
const STARTS = 7;
const ROUNDS = 12;
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };

const median = (values) => values.sort((left, right) => left - right)[Math.floor(values.length / 2)];

/** What both hosts run. `sides` opens a side, and `memory` returns bytes. */
const CLIENT = `
const WORDS = "the ferry leaves at seven from a small harbour in the north and people wait with their bags".split(" ");
function mixed(count, seed) {
  // Short texts are the most frequent: 3 to 100 words.
  let state = seed * 2654435761 + 1;
  const random = () => ((state = (state * 1664525 + 1013904223) % 4294967296) / 4294967296);
  return Array.from({ length: count }, () => {
    const length = Math.round(3 + 97 * random() ** 3);
    return Array.from({ length }, () => WORDS[Math.floor(random() * WORDS.length)]).join(" ");
  });
}
async function firstVector(side, sides) {
  const encode = await sides[side]();
  await encode(["hello"]);
  return performance.now();
}
async function throughput(sides, rounds) {
  const encode = { kivuml: await sides.kivuml(), transformers: await sides.transformers() };
  const took = { kivuml: [], transformers: [] };
  let cosine = 1;
  for (let round = 0; round <= rounds; round++) {
    const texts = mixed(48, round + 1);
    const found = {};
    for (const side of round % 2 ? ["kivuml", "transformers"] : ["transformers", "kivuml"]) {
      const started = performance.now();
      found[side] = await encode[side](texts);
      // The first round warms both up.
      if (round > 0) took[side].push(performance.now() - started);
    }
    const product = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
    found.kivuml.forEach((vector, place) => (cosine = Math.min(cosine, product(vector, found.transformers[place]))));
  }
  return { took, cosine, instructions: await encode.kivuml.instructions() };
}
async function many(side, sides) {
  const encode = await sides[side]();
  for (let chunk = 0; chunk < 20; chunk++) await encode(mixed(50, 100 + chunk));
}
/** Texts of similar length share a batch, as is usual. */
async function batched(extract, texts) {
  const order = texts.map((_, place) => place).sort((left, right) => texts[left].length - texts[right].length);
  const vectors = [];
  for (let first = 0; first < order.length; first += 8) {
    const places = order.slice(first, first + 8);
    const found = await extract(places.map((place) => texts[place]), { pooling: "mean", normalize: true });
    const width = found.dims[1];
    places.forEach((place, row) => (vectors[place] = found.data.slice(row * width, (row + 1) * width)));
  }
  return vectors;
}`;

const NODE = `import ${JSON.stringify(HOOKS)};
${CLIENT}
const sides = {
  async kivuml() {
    const { load } = await import(${JSON.stringify(path.join(PACKAGE ?? "", "index.js"))});
    const model = await load(${JSON.stringify(BUNDLE)});
    const instructions = async () => (await import(${JSON.stringify(path.join(PACKAGE ?? "", "native.js"))})).instructionSet();
    return Object.assign((texts) => model.encode(texts, { normalize: true }), { instructions });
  },
  async transformers() {
    const { env, pipeline } = await import(${JSON.stringify(path.join(PEERS ?? "", "node_modules/@huggingface/transformers/dist/transformers.node.mjs"))});
    Object.assign(env, { allowRemoteModels: false, localModelPath: ${JSON.stringify(`${MODELS}/`)}, useWasmCache: false });
    env.backends.onnx.wasm.numThreads = 1;
    env.backends.onnx.wasm.wasmPaths = ${JSON.stringify(`${pathToFileURL(path.join(PEERS ?? "", "node_modules/onnxruntime-web/dist"))}/`)};
    const extract = await pipeline("feature-extraction", "minilm", { dtype: "q8", device: "cpu" });
    const { readFileSync } = await import("node:fs");
    if (/libonnxruntime/.test(readFileSync("/proc/self/maps", "utf8"))) throw new Error("expected onnxruntime-web, but found the native library");
    return (texts) => batched(extract, texts);
  },
};`;

/** The last line that code prints in a new process, as JSON. */
function inNode(code) {
  const output = execFileSync(process.execPath, ["--input-type=module", "--eval", NODE + code], { encoding: "utf8" });
  return JSON.parse(output.trim().split("\n").at(-1));
}

const PAGE = `<!doctype html><script type="importmap">{"imports": {"onnxruntime-web": "/peers/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs", "onnxruntime-web/webgpu": "/peers/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs", "onnxruntime-common": "/peers/node_modules/onnxruntime-common/dist/esm/index.js"}}</script>
<script type="module">${CLIENT}
const sides = {
  async kivuml() {
    const { load } = await import("/package/index.js");
    const model = await load("/bundle/", { cache: false });
    const instructions = async () => (await import("/package/native.js")).instructionSet();
    return Object.assign((texts) => model.encode(texts, { normalize: true }), { instructions });
  },
  async transformers() {
    const { env, pipeline } = await import("/peers/node_modules/@huggingface/transformers/dist/transformers.web.js");
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/models/", useBrowserCache: false, useWasmCache: false });
    env.backends.onnx.wasm.numThreads = 1;
    env.backends.onnx.wasm.wasmPaths = "/peers/node_modules/onnxruntime-web/dist/";
    const extract = await pipeline("feature-extraction", "minilm", { dtype: "q8", device: "wasm" });
    return (texts) => batched(extract, texts);
  },
};
let found;
try {
  const side = new URL(location.href).searchParams.get("side");
  found = side === "both" ? await throughput(sides, ${ROUNDS}) : await firstVector(side, sides);
} catch (error) {
  found = { error: String(error?.stack ?? error) };
}
await fetch("/report", { method: "POST", body: JSON.stringify(found) });
</script>`;

/** Calls \`run\` with a function that opens the page in a new browser, and returns its report. */
async function withBrowser(run) {
  let report;
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://localhost");
    if (request.method === "POST") {
      const parts = [];
      for await (const part of request) parts.push(part);
      response.writeHead(204).end();
      return report(JSON.parse(Buffer.concat(parts).toString()));
    }
    if (pathname === "/") return response.writeHead(200, { "content-type": "text/html" }).end(PAGE);
    const [, root, ...rest] = pathname.split("/");
    const folder = { package: PACKAGE, bundle: BUNDLE, peers: PEERS, models: MODELS }[root];
    const file = path.join(folder ?? "/nothing", ...rest);
    if (!existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "content-type": TYPES[path.extname(file)] ?? "application/octet-stream" }).end(readFileSync(file));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const url = `http://127.0.0.1:${server.address().port}/`;
  const open = async (side) => {
    const profile = mkdtempSync(path.join(tmpdir(), "kivuml-bench-"));
    const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", `--user-data-dir=${profile}`];
    const reported = new Promise((resolve) => (report = resolve));
    const browser = spawn(CHROMIUM, [...flags, `${url}?side=${side}`], { stdio: "ignore" });
    try {
      const found = await reported;
      if (found.error) throw new Error(found.error);
      return found;
    } finally {
      browser.kill("SIGKILL");
      await once(browser, "exit").catch(() => {});
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    }
  };
  try {
    return await run(open);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

async function measure(host, first, both) {
  const starts = [];
  for (let run = 0; run < STARTS; run++) starts.push([await first("kivuml"), await first("transformers")]);
  const { took, cosine, instructions } = await both();
  const ratios = took.kivuml.map((time, round) => took.transformers[round] / time);
  return {
    [`${host}: instructions`]: instructions,
    [`${host}: first vector, ms`]: [median(starts.map(([own]) => own)), median(starts.map(([, peer]) => peer))],
    [`${host}: first vector, ratio`]: median(starts.map(([own, peer]) => own / peer)),
    [`${host}: texts/s`]: [48e3 / median([...took.kivuml]), 48e3 / median([...took.transformers])],
    [`${host}: texts/s, ratio`]: median(ratios),
    [`${host}: lowest cosine between both`]: cosine,
  };
}

/** The worker's memory, and its processor time for a text. */
async function measureWorker(bundle) {
  const { url, pid, end } = await serve({ workerd: WORKERD, package: PACKAGE, bundle });
  const post = async (path, input) => {
    const response = await fetch(url + path, { method: "POST", body: JSON.stringify({ input }) });
    await response.arrayBuffer();
    return response.status;
  };
  // The fields after the name: the 12th and the 13th are the time in the program and in the system, in ticks of 10 ms.
  const seconds = () => {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
    return (Number(fields[11]) + Number(fields[12])) / 100;
  };
  const perRequest = async (path, count) => {
    for (let number = 0; number < count / 4; number++) await post(path, "The ferry leaves at seven.");
    const before = seconds();
    for (let number = 0; number < count; number++) await post(path, "The ferry leaves at seven.");
    return (1e3 * (seconds() - before)) / count;
  };
  try {
    await post("/nothing", "");
    const before = residentBytes(pid);
    const [embedded, refused] = [await perRequest("/v1/embeddings", 2000), await perRequest("/nothing", 2000)];
    for (let first = 0; first < 1000; first += 50) {
      const texts = Array.from({ length: 50 }, (_, number) => `${"some words ".repeat(1 + ((first + number) % 20))}${number}`);
      if ((await post("/v1/embeddings", texts)) !== 200) throw new Error("expected vectors, but found another response");
    }
    return {
      "processor ms for one text, with its request": embedded,
      "processor ms for a request that is refused": refused,
      "process after 3,500 texts, MB": residentBytes(pid) / 1e6,
      "of which beyond the start, MB": (residentBytes(pid) - before) / 1e6,
    };
  } finally {
    end();
  }
}

const figures = { "Node.js": process.version, processor: cpus()[0].model };
for (const name of ["kivuml.wasm", "kivuml-relaxed.wasm"]) {
  const module = readFileSync(path.join(PACKAGE, name));
  figures[`${name}: MB, with gzip, with brotli`] = [module.length, gzipSync(module, { level: 9 }).length, brotliCompressSync(module).length].map((size) => size / 1e6);
}
Object.assign(
  figures,
  await measure(
    "Node.js",
    (side) => inNode(`console.log(JSON.stringify(await firstVector("${side}", sides)));`),
    () => inNode(`console.log(JSON.stringify(await throughput(sides, ${ROUNDS})));`),
  ),
);
const memory = `await many("kivuml", sides); const native = await import(${JSON.stringify(path.join(PACKAGE, "native.js"))}); console.log(native.memory());`;
figures["instance after 1,000 texts, MB"] = inNode(memory) / 1e6;
for (const side of ["kivuml", "transformers"]) {
  figures[`${side}: process after 1,000 texts, MB`] = inNode(`await many("${side}", sides); console.log(process.memoryUsage().rss);`) / 1e6;
}
if (CHROMIUM) {
  Object.assign(figures, await withBrowser((open) => measure("Chromium", open, () => open("both"))));
}
for (const [name, bundle] of WORKERD ? Object.entries({ minilm: BUNDLE, table: TABLE }) : []) {
  for (const [figure, value] of Object.entries(await measureWorker(bundle))) figures[`workerd, ${name}: ${figure}`] = value;
}
const rounded = (value) => (Array.isArray(value) ? value.map(rounded) : typeof value === "number" ? Number(value.toPrecision(5)) : value);
for (const name of Object.keys(figures)) figures[name] = rounded(figures[name]);
console.log(JSON.stringify(figures, null, 2));
