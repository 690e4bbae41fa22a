import { Model } from "./types";

export * from "./types";

/** Options for loading a model. */
export interface LoadOptions {
  /** The task, if the model's files allow several. */
  task?: string;
  /** The weights' number format: `int8`, `int8-blocks` or `fp32`. */
  precision?: string;
  /** The engine for local encoders. */
  engine?: "auto" | "native" | "onnx";
  /** Rows that the model runs at once; by default one per CPU. */
  threads?: number;
  /** The folder for downloads and builds. */
  home?: string;
  /** A configuration file, instead of `kivu.toml`. */
  config?: string;
  /** Keys in the model's files to ignore, although they may change results. */
  allow?: string[];
  /** Ends the wait; a build that has begun goes on. */
  signal?: AbortSignal;
}

/**
 * Loads a model: a repository of the Hugging Face hub, a recipe's name, a folder or a bundle, or `s3://…`.
 *
 * A model that is not built yet is downloaded and built first. `kivu.toml` and variables such as `KIVU_HOME` apply, as
 * they do to the `kivu` command.
 */
export function load(name: string | URL, options?: LoadOptions): Promise<Model>;
