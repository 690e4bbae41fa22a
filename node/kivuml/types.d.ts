// What the packages for Node.js and for WebAssembly share.

/** Options for calls with any number of texts. */
export interface RunOptions {
  /** Ends the call; texts that the model has not begun are not run. */
  signal?: AbortSignal;
  /** Called after each batch with the number of texts so far, and of all. */
  onProgress?: (done: number, total: number) => void;
}

export interface TruncateOptions {
  /** Whether texts above the token limit are truncated, which is the default, or refused. */
  truncate?: boolean;
}

export interface PromptOptions {
  /** The model's prompt with this name or for this role, such as `query`. */
  promptName?: string | null;
}

export interface Arrays {
  float32: Float32Array;
  int8: Int8Array;
  uint8: Uint8Array;
  /** Eight dimensions in a value. */
  binary: Int8Array;
  /** Eight dimensions in a value. */
  ubinary: Uint8Array;
}

export interface EncodeOptions<P extends keyof Arrays = keyof Arrays> extends RunOptions, TruncateOptions, PromptOptions {
  /** A text to put before each text, instead of one of the model's prompts. */
  prompt?: string;
  /** Replaces the instruction in the model's prompt for queries, if it has one. */
  instruction?: string;
  /** One of the model's `tasks`, whose adapters it uses, with the prompt of this name. */
  task?: string;
  /** Truncates vectors to this many values. */
  dimensions?: number;
  /** Whether vectors are scaled to length 1; by default the model's setting. */
  normalize?: boolean;
  /** The vectors' number format; `float32` by default. */
  precision?: P;
}

export interface MultiVectorOptions extends RunOptions, TruncateOptions, PromptOptions {
  normalize?: boolean;
}

export interface SparseOptions<W extends boolean = boolean> extends RunOptions, TruncateOptions, PromptOptions {
  /** Keeps this many of the largest weights. */
  maxActiveDims?: number;
  /** Whether weights are named by word instead of token id; a token without a word keeps its id. */
  words?: W;
}

export interface RankOptions extends TruncateOptions {
  /** The number of documents to return; all by default. */
  topK?: number;
  /** What makes a document relevant, for models whose template has an instruction. */
  instruction?: string;
  /** A text to put before the query, instead of the model's prompt. */
  prompt?: string;
  /** Whether scores are logits, cosines or product sums instead of numbers from 0 to 1. */
  rawScores?: boolean;
  /** Whether results have the documents' texts. */
  returnDocuments?: boolean;
  signal?: AbortSignal;
}

export interface ClassifyOptions extends RunOptions, TruncateOptions {
  /** The number of labels to return; all by default. */
  topK?: number;
  /** Maps the model's output to scores; the model's own function by default. */
  functionToApply?: "softmax" | "sigmoid" | "none";
}

export interface ZeroShotOptions extends RunOptions, TruncateOptions {
  /** Whether each label is scored independently. */
  multiLabel?: boolean;
  /** The hypothesis, with `{}` for the label. */
  template?: string;
  /** Describes the task, to models that read labels and text together. */
  prompt?: string;
}

export interface EntityOptions<R extends boolean = boolean> extends RunOptions, TruncateOptions {
  /** The entities to find, with a model that takes labels. */
  labels?: string | Iterable<string>;
  /** Whether to return texts in which entities are replaced by their labels, too. */
  redact?: R;
  /** What replacements have besides labels; `hash` and `encrypt` need a key. */
  style?: "label" | "number" | "hash" | "encrypt";
  /** Whether numbers are counted in each text, or in all texts of this call, which then run at once. */
  scope?: "text" | "request";
  /** Earlier results' originals by placeholder, whose numbers are continued. */
  mapping?: Readonly<Record<string, string>>;
  /** The key: 64 hexadecimal digits. */
  key?: string;
  /** Patterns to find as well, or `all`: numbers with check digits, addresses, keys. */
  patterns?: string | Iterable<string>;
  /** How token labels become entities. */
  aggregation?: "none" | "simple" | "first" | "average" | "max";
  /** Finds more or longer entities, or fewer or shorter ones, with a model whose labels mark ends. */
  transitionBiases?: TransitionBiases;
  /** The lowest score, with a model that takes labels. */
  threshold?: number;
  /** Reads long texts in windows that overlap by this many tokens, or words with a model that takes labels. */
  stride?: number;
}

/** Numbers that are added to the logarithms of probabilities for pairs of neighbouring tokens. */
export interface TransitionBiases {
  background_stay?: number;
  background_to_start?: number;
  inside_to_continue?: number;
  inside_to_end?: number;
  end_to_background?: number;
  end_to_start?: number;
}

export interface RestoreOptions extends RunOptions {
  /** The originals by placeholder, from `entities`. */
  mapping?: Readonly<Record<string, string>>;
  /** The key of encrypted originals. */
  key?: string;
}

/** What is extracted, in one of the forms of the package `gliner2`; the order of names is kept. */
export type Schema = string | readonly unknown[] | Readonly<Record<string, unknown>>;

export interface ExtractOptions extends RunOptions, TruncateOptions {
  /** The schema's form; `schema` by default. */
  form?: "schema" | "extract_entities" | "extract_json" | "classify_text";
  /** Values have at least this score, 0.5 by default. */
  threshold?: number;
  /** Whether values have scores. */
  confidence?: boolean;
  /** Whether values have places in the text. */
  spans?: boolean;
}

export interface GenerateOptions extends RunOptions, TruncateOptions {
  /** Generation settings with their names in `transformers`, such as `{ num_beams: 4 }`. */
  generation?: Record<string, unknown>;
}

export interface TranslateOptions extends GenerateOptions {
  /** The language of the texts, if the model has several. */
  source?: string;
  /** The language to translate to, if the model has several. */
  target?: string;
}

export interface TokenizeOptions extends RunOptions, PromptOptions {
  /** A text to put before each text, instead of one of the model's prompts. */
  prompt?: string;
  /** Replaces the instruction in the model's prompt for queries, if it has one. */
  instruction?: string;
  /** The task whose prompt to put before each text, in a model with tasks. */
  task?: string;
  /** Whether the model's special tokens are added; true by default. */
  addSpecialTokens?: boolean;
}

/** A label and its score. */
export interface Prediction {
  label: string;
  score: number;
}

/** A document's position in the list, its score and, on request, its text. */
export interface Rank {
  index: number;
  score: number;
  text?: string;
}

/** An entity with its label, and its first and last character's positions, as in `transformers`. */
export interface Entity {
  entity_group?: string;
  entity?: string;
  index?: number;
  score: number;
  word: string;
  start: number;
  end: number;
}

/** A text in which entities are replaced by their labels, with the entities. */
export interface Redacted {
  text: string;
  entities: Entity[];
  /** Originals by placeholder, with the styles `number` and `hash`. */
  mapping?: Record<string, string>;
}

/** A text with its originals, and the numbers of placeholders that were replaced, and that are unknown. */
export interface Restored {
  text: string;
  restored: number;
  unknown: number;
}

/** A token, and the part of the text that it represents. */
export interface Token {
  id: number;
  text: string;
  special: boolean;
  start: number | null;
  stop: number | null;
}

/** A model in this process. A text has a single result; any number of texts have a list of results. */
export class Model {
  private constructor();

  /** The model's name in requests. */
  readonly name: string;
  /** The model's task, such as `feature-extraction`. */
  readonly task: string;
  /** Maximum tokens per text, special tokens included. */
  readonly maxTokens: number;
  /** Values in a dense vector; `null` if the model has no dense vectors. */
  readonly dimensions: number | null;
  /** How dense vectors are to be compared. */
  readonly similarity: "cosine" | "dot" | "euclidean" | "manhattan" | null;
  /** The model's own labels, if it has any. */
  readonly labels: string[] | null;
  /** The names of the model's prompts. */
  readonly prompts: string[];
  /** The tasks for which the model has adapters. */
  readonly tasks: string[];
  /** The prompt for queries, if the model has one. */
  readonly queryPrompt: string | null;
  /** The prompt for documents, if the model has one. */
  readonly documentPrompt: string | null;

  /**
   * Embeds texts: an array with `dimensions` values for each. The arrays of a list are views of one buffer, in the
   * order of the texts.
   */
  encode<P extends keyof Arrays = "float32">(text: string, options?: EncodeOptions<P>): Promise<Arrays[P]>;
  encode<P extends keyof Arrays = "float32">(texts: Iterable<string>, options?: EncodeOptions<P>): Promise<Arrays[P][]>;

  /**
   * Embeds texts as a vector per token. Late-interaction models return their projected vectors, all others their token
   * vectors before pooling.
   */
  multiVectors(text: string, options?: MultiVectorOptions): Promise<Float32Array[]>;
  multiVectors(texts: Iterable<string>, options?: MultiVectorOptions): Promise<Float32Array[][]>;

  /** Embeds texts as token weights, from token ids, or `words`, to weights. */
  sparse(text: string, options: SparseOptions<true>): Promise<Map<string | number, number>>;
  sparse(texts: Iterable<string>, options: SparseOptions<true>): Promise<Map<string | number, number>[]>;
  sparse(text: string, options?: SparseOptions<false>): Promise<Map<number, number>>;
  sparse(texts: Iterable<string>, options?: SparseOptions<false>): Promise<Map<number, number>[]>;

  /** Ranks documents by a query, the most relevant one first. */
  rank(query: string, documents: Iterable<string>, options?: RankOptions): Promise<Rank[]>;

  /** Classifies texts, or lists of two texts that the model reads together: labels with scores, the highest first. */
  classify(text: string, options?: ClassifyOptions): Promise<Prediction[]>;
  classify(texts: Iterable<string | readonly [string, string]>, options?: ClassifyOptions): Promise<Prediction[][]>;

  /** Classifies texts with your labels: labels with scores, the highest first. */
  zeroShot(text: string, labels: string | Iterable<string>, options?: ZeroShotOptions): Promise<Prediction[]>;
  zeroShot(texts: Iterable<string>, labels: string | Iterable<string>, options?: ZeroShotOptions): Promise<Prediction[][]>;

  /** Finds entities. */
  entities(text: string, options: EntityOptions<true>): Promise<Redacted>;
  entities(texts: Iterable<string>, options: EntityOptions<true>): Promise<Redacted[]>;
  entities(text: string, options?: EntityOptions<false>): Promise<Entity[]>;
  entities(texts: Iterable<string>, options?: EntityOptions<false>): Promise<Entity[][]>;

  /** Puts originals back in place of placeholders. The model does not run. */
  restore(text: string, options: RestoreOptions): Promise<Restored>;
  restore(texts: Iterable<string>, options: RestoreOptions): Promise<Restored[]>;

  /** Extracts what a schema describes, with a model that reads schemas: values by the schema's names. */
  extract(text: string, schema: Schema, options?: ExtractOptions): Promise<Record<string, unknown>>;
  extract(texts: Iterable<string>, schema: Schema, options?: ExtractOptions): Promise<Record<string, unknown>[]>;

  /** Translates texts, sentence by sentence. */
  translate(text: string, options?: TranslateOptions): Promise<string>;
  translate(texts: Iterable<string>, options?: TranslateOptions): Promise<string[]>;

  /** Summarizes texts. */
  summarize(text: string, options?: GenerateOptions): Promise<string>;
  summarize(texts: Iterable<string>, options?: GenerateOptions): Promise<string[]>;

  /** Generates texts with a model for `text2text-generation`, as `summarize` does. */
  generate(text: string, options?: GenerateOptions): Promise<string>;
  generate(texts: Iterable<string>, options?: GenerateOptions): Promise<string[]>;

  /** Returns each text's tokens. */
  tokenize(text: string, options?: TokenizeOptions): Promise<Token[]>;
  tokenize(texts: Iterable<string>, options?: TokenizeOptions): Promise<Token[][]>;

  /** Frees the model once its calls end. Later calls reject with `ClosedError`. */
  close(): void;
}

/** A call that failed, with the message of `kivu serve`: expected X, but found Y; what to do. */
export class KivuError extends Error {
  /** `ERR_KIVU_` and the class, such as `ERR_KIVU_INVALID`. */
  readonly code: string;
}

/** An argument has an invalid value, or does not fit the model. */
export class InvalidError extends KivuError {}

/** An argument exceeds a limit. */
export class TooLargeError extends KivuError {}

/** The model is closed. */
export class ClosedError extends KivuError {}

/** There is no model with this name. */
export class UnknownModelError extends KivuError {}

/** The configuration or a model's name is invalid. */
export class ConfigError extends KivuError {}

/** A model is damaged or unsupported, or cannot be built. */
export class ModelError extends KivuError {}

/** A model failed to run. */
export class InferenceError extends KivuError {}

/** A model cannot be reached at the moment. */
export class UnavailableError extends KivuError {}

/** There was no result in time. */
export class DeadlineExceededError extends KivuError {}

/** An operating system call failed. */
export class KivuOSError extends KivuError {}
