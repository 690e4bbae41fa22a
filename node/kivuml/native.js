"use strict";
// The native module for this platform; on other platforms, the WebAssembly module.

const { createRequire } = require("node:module");
const { pathToFileURL } = require("node:url");

const NAME = `kivuml-${process.platform}-${process.arch}`;
const WASM = "kivuml-wasm";
const BUNDLERS =
  "a bundler has to leave `kivuml` out, as with `serverExternalPackages` in Next.js or `externals` in webpack, or " +
  "`kivuml.node` has to be next to the bundle; see docs/node.md";

/** @returns {import("./native-module") | undefined} The module, if the package for this platform is installed. */
function native() {
  /** @type {NodeJS.ErrnoException | undefined} */
  let failure;
  try {
    // Bundlers and file tracing find literal names only.
    switch (NAME) {
      case "kivuml-linux-x64":
        // @ts-ignore: one of them is installed.
        return require("kivuml-linux-x64");
      case "kivuml-linux-arm64":
        // @ts-ignore: one of them is installed.
        return require("kivuml-linux-arm64");
    }
  } catch (error) {
    failure = /** @type {NodeJS.ErrnoException} */ (error);
  }
  try {
    // In a bundle, the code above may lack the module, although the package is installed.
    return createRequire(__filename)(NAME);
  } catch (error) {
    failure ??= /** @type {NodeJS.ErrnoException} */ (error);
  }
  if (failure.code === "MODULE_NOT_FOUND") return undefined;
  throw new Error(`cannot load the npm package \`${NAME}\`: ${failure.message}; ${BUNDLERS}`, { cause: failure });
}

/** @returns {Error} */
function missing() {
  return new Error(
    `expected the npm package \`${NAME}\` or \`${WASM}\`, but found neither; there are packages for linux-x64 and ` +
      `linux-arm64 with glibc 2.28 or later, which \`--omit=optional\` leaves out; install \`${WASM}\` on other platforms; ` +
      BUNDLERS,
  );
}

module.exports = native() ?? (() => {
  let wasm;
  try {
    wasm = require.resolve(`${WASM}/native.js`);
  } catch {
    throw missing();
  }
  return require("./wasm.js").fallback(pathToFileURL(wasm).href);
})();
