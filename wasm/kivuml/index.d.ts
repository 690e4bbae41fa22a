import type { Model } from "./types.js";

export * from "./types.js";

/** A file's contents. */
export type Contents = ArrayBuffer | ArrayBufferView | string;
/** The WebAssembly module, or where it is. */
export type ModuleSource = WebAssembly.Module | BufferSource | Response | URL | string;

/** Options for loading a model. */
export interface LoadOptions {
  /** Ends the call. */
  signal?: AbortSignal;
  /** Whether fetched files are kept by the Cache API, if the host has it; true by default. */
  cache?: boolean;
  /** Fetches files, instead of the global `fetch`: for example from another worker. */
  fetch?: (url: URL, options: { signal?: AbortSignal }) => Promise<Response>;
  /** The WebAssembly module, if it is not next to the package's code. It is used for the first model. */
  module?: ModuleSource;
}

/**
 * Loads a model that `kivu build` has made for the native engine: from its folder's URL or path, or from its files by name.
 * The files that the manifest lists are verified by their hashes.
 */
export function load(
  bundle: string | URL | Map<string, Contents> | Record<string, Contents>,
  options?: LoadOptions,
): Promise<Model>;
