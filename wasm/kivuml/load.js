// Loads models from bundles: from a folder or URL, or from bytes.

import { asOptions } from "./arguments.js";
import { filesOf } from "./files.js";
import { cancellable, opened } from "./model.js";
import { open } from "./native.js";

/** @type {typeof import("./index.js").load} */
export async function load(bundle, options) {
  const known = /** @type {const} */ (["signal", "cache", "module", "fetch"]);
  const { signal, cache = true, module, fetch = globalThis.fetch } = asOptions(options, known);
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
