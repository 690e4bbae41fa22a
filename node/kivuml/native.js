"use strict";
// The native module for this platform, which finds ONNX Runtime next to it; on other platforms, the WebAssembly module.

const { existsSync } = require("node:fs");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const WASM = "kivuml-wasm";

/** @returns {string | undefined} The module's path: in this package, or in the package for this platform. */
function locate() {
  const own = path.join(__dirname, "native", "kivuml.node");
  if (existsSync(own)) return own;
  try {
    return require.resolve(`kivuml-${process.platform}-${process.arch}/kivuml.node`);
  } catch {
    return undefined;
  }
}

/** @param {string} file @returns {import("./native-module")} */
function native(file) {
  const loaded = require(file);
  const library = path.join(path.dirname(file), "lib");
  if (existsSync(library)) loaded.addPackage(library);
  return loaded;
}

/** @returns {Error} */
function missing() {
  return new Error(
    `expected the npm package \`kivuml-${process.platform}-${process.arch}\` or \`${WASM}\`, but found neither; there are ` +
      "packages for linux-x64 and linux-arm64 with glibc 2.28 or later, which `--omit=optional` leaves out; install " +
      `\`${WASM}\` on other platforms`,
  );
}

module.exports = (() => {
  const file = locate();
  if (file !== undefined) return native(file);
  let wasm;
  try {
    wasm = require.resolve(`${WASM}/native.js`);
  } catch {
    throw missing();
  }
  return require("./wasm.js").fallback(pathToFileURL(wasm).href);
})();
