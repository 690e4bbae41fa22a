"use strict";
// The WebAssembly module in place of the native one, on platforms that have none.

const { readFile } = require("node:fs/promises");
const path = require("node:path");

/** @param {string} code @param {string} message */
const coded = (code, message) => Object.assign(new Error(message), { code });

/**
 * @param {string} url The native.js of the package `kivuml-wasm`.
 * @returns {any} The functions of the native module.
 */
function fallback(url) {
  return {
    batch: 16,
    Cancellation: class {
      cancel() {}
    },
    /** @param {string} name @param {string} json */
    async load(name, json) {
      const [option] = Object.keys(JSON.parse(json));
      if (option !== undefined) {
        throw coded("ConfigError", `expected no option \`${option}\` on this platform, which runs models in WebAssembly, but found it`);
      }
      const contents = (/** @type {string} */ file) => readFile(path.join(name, file));
      const manifest = await contents("manifest.toml").catch(() => {
        throw coded(
          "ConfigError",
          `expected a bundle's folder, since this platform runs models in WebAssembly and cannot build them, but found \`${name}\``,
        );
      });
      /** @param {string} file @param {string} _ @param {(contents: Uint8Array) => void} take */
      const read = async (file, _, take) => take(await contents(file));
      const { open } = await import(url);
      return open(manifest.toString("utf8"), read);
    },
    command() {
      console.error("error: expected a platform with the `kivu` command, which are linux-x64 and linux-arm64");
      return 1;
    },
    addPackage() {},
  };
}

module.exports = { fallback };
