// Files of bundles: at a URL, where the Cache API keeps them by their hashes, or in memory.

import { quoted, typeName } from "./arguments.js";
import { classes, wrongType } from "./errors.js";

const CACHE = "kivuml";

/** @typedef {{ cache: boolean, signal?: AbortSignal | null, fetch: typeof globalThis.fetch }} Options */

/**
 * `forget` removes kept files, and returns whether there were any.
 *
 * @typedef {{ read: (name: string, hash?: string) => Promise<Uint8Array>, forget: () => Promise<boolean> }} Files
 */

/**
 * @param {unknown} bundle
 * @param {Options} options
 * @returns {Files}
 */
export function filesOf(bundle, options) {
  if (typeof bundle === "string" || bundle instanceof URL) {
    /** @type {Set<string>} */
    const kept = new Set();
    return {
      read: async (name, hash) => readFrom(await location(bundle), name, hash, { ...options, kept }),
      forget: async () => {
        const cache = kept.size > 0 ? await opened() : undefined;
        for (const key of kept) await cache?.delete(key);
        return cache !== undefined;
      },
    };
  }
  if (typeof bundle !== "object" || bundle === null || ArrayBuffer.isView(bundle) || bundle instanceof ArrayBuffer) {
    throw wrongType(`expected \`bundle\` to be a string, a URL or files by name, but found ${typeName(bundle)}`);
  }
  const files = bundle instanceof Map ? bundle : new Map(Object.entries(bundle));
  return { read: async (name) => bytes(name, files), forget: async () => false };
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
 * @param {string | undefined} hash
 * @param {Options & { kept: Set<string> }} options The URLs of kept files are added to `kept`.
 */
async function readFrom(folder, name, hash, { cache, signal, fetch, kept: used }) {
  const url = new URL(name.split("/").map(encodeURIComponent).join("/"), folder);
  url.search = folder.search;
  if (url.protocol === "file:") return readLocal(url);
  const kept = cache ? await opened() : undefined;
  // A manifest has no hash, and is fetched again whenever there is a connection.
  const key = new URL(url);
  if (hash !== undefined) key.searchParams.set("blake3", hash);
  const known = hash === undefined ? undefined : await kept?.match(key.href);
  if (known) {
    used.add(key.href);
    return contents(known);
  }
  try {
    const response = await fetched(url, fetch, signal);
    const found = await contents(response);
    await kept?.put(key.href, new Response(found)).catch(() => {});
    return found;
  } catch (error) {
    const last = hash === undefined && !(error instanceof classes.UnknownModelError) ? await kept?.match(key.href) : undefined;
    if (last) return contents(last);
    throw error;
  }
}

/**
 * @param {URL} url
 * @param {typeof globalThis.fetch} fetch
 * @param {AbortSignal | null} [signal]
 */
async function fetched(url, fetch, signal) {
  const place = `${url.origin}${url.pathname}`;
  let response;
  try {
    response = await fetch(url, { signal: signal ?? undefined });
  } catch (cause) {
    signal?.throwIfAborted();
    throw new classes.UnavailableError(`cannot fetch \`${place}\``, { cause });
  }
  if (response.ok) return response;
  const Kind = response.status === 404 ? classes.UnknownModelError : classes.UnavailableError;
  throw new Kind(`expected a bundle's file at \`${place}\`, but found the status ${response.status}`);
}

/** @param {URL} url */
async function readLocal(url) {
  const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
  try {
    return await readFile(url);
  } catch (cause) {
    throw new classes.KivuOSError(`cannot read \`${url.pathname}\``, { cause });
  }
}

/** @param {Response} response */
async function contents(response) {
  return new Uint8Array(await response.arrayBuffer());
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
