// Files of bundles: at a URL, where the Cache API keeps them by their hashes, or in memory. They are read in pieces, so that
// large ones are never complete in JavaScript's memory.

import { quoted, typeName } from "./arguments.js";
import { classes, wrongType } from "./errors.js";

const CACHE = "kivuml";
const MANIFEST = "manifest.toml";
/** The size of a local file's pieces, in bytes. */
const PIECE = 1 << 20;

/** @typedef {{ cache: boolean, signal?: AbortSignal | null, fetch: typeof globalThis.fetch }} Options */
/** @typedef {import("./native.js").Take} Take */

/**
 * `forget` removes kept files, and returns whether there were any.
 *
 * @typedef {object} Files
 * @property {() => Promise<string>} manifest
 * @property {import("./native.js").Read} read
 * @property {() => Promise<boolean>} forget
 */

/**
 * @param {unknown} bundle
 * @param {Options} options
 * @returns {Files}
 */
export function filesOf(bundle, options) {
  if (typeof bundle === "string" || bundle instanceof URL) {
    /** @type {Set<string>} */
    const used = new Set();
    return {
      manifest: async () => readManifest(fileIn(await location(bundle), MANIFEST), options),
      read: async (name, hash, take) => read(fileIn(await location(bundle), name), hash, take, { ...options, used }),
      forget: async () => {
        const cache = used.size > 0 ? await opened() : undefined;
        for (const key of used) await cache?.delete(key);
        return cache !== undefined;
      },
    };
  }
  if (typeof bundle !== "object" || bundle === null || ArrayBuffer.isView(bundle) || bundle instanceof ArrayBuffer) {
    throw wrongType(`expected \`bundle\` to be a string, a URL or files by name, but found ${typeName(bundle)}`);
  }
  const files = bundle instanceof Map ? bundle : new Map(Object.entries(bundle));
  return {
    manifest: async () => new TextDecoder().decode(bytes(MANIFEST, files)),
    read: async (name, _, take) => take(bytes(name, files)),
    forget: async () => false,
  };
}

/**
 * The URL of a bundle's folder.
 *
 * @param {string | URL} bundle
 * @returns {Promise<URL>}
 */
async function location(bundle) {
  const text = String(bundle);
  let url;
  if (/^[a-z][a-z0-9+.-]+:/i.test(text)) {
    url = new URL(text);
  } else if (globalThis.location?.href) {
    url = new URL(text, globalThis.location.href);
  } else {
    const { pathToFileURL } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:url");
    url = pathToFileURL(text);
  }
  url.pathname = url.pathname.replace(/\/?(manifest\.toml)?$/, "/");
  return url;
}

/**
 * @param {URL} folder
 * @param {string} name
 */
function fileIn(folder, name) {
  const url = new URL(name.split("/").map(encodeURIComponent).join("/"), folder);
  url.search = folder.search;
  return url;
}

/**
 * A manifest has no hash, and is fetched again whenever there is a connection.
 *
 * @param {URL} url
 * @param {Options} options
 */
async function readManifest(url, { cache, signal, fetch }) {
  if (url.protocol === "file:") {
    const decoder = new TextDecoder();
    let text = "";
    await readLocal(url, (piece) => (text += decoder.decode(piece, { stream: true })));
    return text;
  }
  const kept = cache ? await opened() : undefined;
  try {
    const response = await fetched(url, fetch, signal);
    const text = await response.text().catch(unavailable(url, signal));
    await kept?.put(url.href, new Response(text)).catch(() => {});
    return text;
  } catch (error) {
    const last = error instanceof classes.UnknownModelError ? undefined : await kept?.match(url.href);
    if (last) return last.text();
    throw error;
  }
}

/**
 * @param {URL} url
 * @param {string} hash
 * @param {Take} take
 * @param {Options & { used: Set<string> }} options The URLs of kept files are added to `used`.
 */
async function read(url, hash, take, { cache, signal, fetch, used }) {
  if (url.protocol === "file:") return readLocal(url, take);
  const kept = cache ? await opened() : undefined;
  const key = new URL(url);
  key.searchParams.set("blake3", hash);
  const known = await kept?.match(key.href);
  if (known) {
    used.add(key.href);
    return passed(known.body, url, take, signal);
  }
  const { body } = await fetched(url, fetch, signal);
  if (!kept || !body) return passed(body, url, take, signal);
  const [found, copy] = body.tee();
  const stored = kept.put(key.href, new Response(copy)).catch(() => {});
  await passed(found, url, take, signal);
  await stored;
}

/**
 * Passes a response's pieces to `take`.
 *
 * @param {ReadableStream<Uint8Array> | null} body
 * @param {URL} url
 * @param {Take} take
 * @param {AbortSignal | null} [signal]
 */
async function passed(body, url, take, signal) {
  const reader = body?.getReader();
  const next = () => reader?.read().catch(unavailable(url, signal));
  try {
    for (let piece = await next(); piece?.value; piece = await next()) take(piece.value);
  } catch (error) {
    await reader?.cancel(error).catch(() => {});
    throw error;
  }
}

/**
 * @param {URL} url
 * @param {typeof globalThis.fetch} fetch
 * @param {AbortSignal | null} [signal]
 */
async function fetched(url, fetch, signal) {
  let response;
  try {
    response = await fetch(url, { signal: signal ?? undefined });
  } catch (cause) {
    return unavailable(url, signal)(cause);
  }
  if (response.ok) return response;
  const Kind = response.status === 404 ? classes.UnknownModelError : classes.UnavailableError;
  throw new Kind(`expected a bundle's file at \`${place(url)}\`, but found the status ${response.status}`);
}

/**
 * Throws the error of a connection that failed, or the reason of the signal that ended it.
 *
 * @param {URL} url
 * @param {AbortSignal | null} [signal]
 * @returns {(cause: unknown) => never}
 */
function unavailable(url, signal) {
  return (cause) => {
    signal?.throwIfAborted();
    throw new classes.UnavailableError(`cannot fetch \`${place(url)}\``, { cause });
  };
}

/** A URL without its query, which may have keys. @param {URL} url */
function place({ origin, pathname }) {
  return origin + pathname;
}

/**
 * @param {URL} url
 * @param {Take} take
 */
async function readLocal(url, take) {
  const { open } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
  /** @type {(cause: unknown) => never} */
  const failed = (cause) => {
    throw new classes.KivuOSError(`cannot read \`${url.pathname}\``, { cause });
  };
  const file = await open(url).catch(failed);
  try {
    for (;;) {
      const { bytesRead, buffer } = await file.read(new Uint8Array(PIECE), 0, PIECE).catch(failed);
      if (bytesRead === 0) return;
      take(buffer.subarray(0, bytesRead));
    }
  } finally {
    await file.close();
  }
}

/** The cache, where a program may have one. */
async function opened() {
  try {
    return await globalThis.caches?.open(CACHE);
  } catch {
    return undefined;
  }
}

/**
 * @param {string} name
 * @param {Map<string, unknown>} files
 */
function bytes(name, files) {
  const found = files.get(name);
  if (typeof found === "string") return new TextEncoder().encode(found);
  if (found instanceof ArrayBuffer) return new Uint8Array(found);
  if (ArrayBuffer.isView(found)) return new Uint8Array(found.buffer, found.byteOffset, found.byteLength);
  if (found === undefined) {
    throw new classes.ModelError(`expected \`${name}\` among the files, but found ${quoted([...files.keys()]) || "none"}`);
  }
  throw wrongType(`expected the file \`${name}\` as bytes, but found ${typeName(found)}`);
}
