// Measures the npm package: start, one text, 32 texts, and the package's part of a call.
//
//     node benches/node.mjs PACKAGE BUNDLE [TABLE]
//
// PACKAGE is a folder with the package, such as target/addon. BUNDLE is an encoder's. TABLE is a bundle with a table of
// static embeddings, whose run takes next to no time: a call's time is then an upper bound for the package's cost.

import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import path from "node:path";

const [folder, bundle, table] = process.argv.slice(2).map((word) => path.resolve(word));
const { load } = createRequire(import.meta.url)(folder);
const TEXT = "The quick brown fox jumps over the lazy dog, and the cat sleeps on the mat.";
const FIRST_VECTOR = 'require(process.argv[1]).load(process.argv[2]).then((model) => model.encode("hello"))';

const median = (values) => values.sort((left, right) => left - right)[Math.floor(values.length / 2)];

function milliseconds(code) {
  const started = performance.now();
  execFileSync(process.execPath, ["--eval", code, folder, bundle]);
  return performance.now() - started;
}

/** Milliseconds to the first vector above an empty program: the median of differences of alternating runs. */
function start(runs = 15) {
  return median(Array.from({ length: runs }, () => milliseconds(FIRST_VECTOR) - milliseconds("0")));
}

async function call(name, count, repeats) {
  const model = await load(name);
  const [texts, times] = [Array(count).fill(TEXT), []];
  for (let number = 0; number < repeats; number++) {
    const started = performance.now();
    await model.encode(texts);
    times.push(performance.now() - started);
  }
  model.close();
  return median(times);
}

const figures = {
  "first vector above an empty program, ms": start(),
  "1 text, ms": await call(bundle, 1, 200),
  "32 texts, ms": await call(bundle, 32, 50),
};
if (table) {
  figures["32 texts with a table, ms"] = await call(table, 32, 1000);
  figures["cost at most, %"] = (100 * figures["32 texts with a table, ms"]) / figures["32 texts, ms"];
}
for (const name of Object.keys(figures)) figures[name] = Number(figures[name].toFixed(2));
console.log(JSON.stringify(figures, null, 2));
