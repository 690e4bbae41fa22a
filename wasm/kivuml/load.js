// Loads models from bundles: from a folder or URL, or from bytes.

import { asOptions, typeName } from "./arguments.js";
import { wrongType } from "./errors.js";
import { filesOf } from "./files.js";
import { cancellable, opened } from "./model.js";
import { open } from "./native.js";

/** @type {typeof import("./index.js").load} */
export async function load(bundle, options) {
  const known = /** @type {const} */ (["signal", "cache", "module", "fetch"]);
  const { signal, module, ...given } = asOptions(options, known);
  const cache = given.cache ?? true;
  const fetch = given.fetch ?? globalThis.fetch;
  if (typeof cache !== "boolean") throw wrongType(`expected \`cache\` to be a boolean, but found ${typeName(cache)}`);
  if (fetch !== undefined && typeof fetch !== "function") {
    throw wrongType(`expected \`fetch\` to be a function, but found ${typeName(fetch)}`);
  }
  return opened(
    await cancellable(signal, async () => {
      const files = filesOf(bundle, { cache, signal, fetch });
      const attempt = () => open(files.manifest(), files.read, module);
      return attempt().catch(async (/** @type {any} */ error) => {
        // A kept file may be damaged.
        if (error?.code === "ModelError" && (await files.forget())) return attempt();
        throw error;
      });
    }),
  );
}
