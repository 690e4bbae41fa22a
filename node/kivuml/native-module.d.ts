// The native module, `node/src`.

export class Cancellation {
  cancel(): void;
}

export class Model {
  description(): string;
  encode(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<Float32Array | Int8Array | Uint8Array>;
  multiVectors(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<TokenVectors>;
  sparse(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string>;
  classify(texts: (string | string[])[], first: number, parameters: string, cancellation?: Cancellation): Promise<string>;
  zeroShot(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string>;
  entities(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string>;
  extract(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string>;
  rank(query: string, documents: string[], parameters: string, cancellation?: Cancellation): Promise<string>;
  translate(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string[]>;
  generate(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string[]>;
  tokenize(texts: string[], first: number, parameters: string, cancellation?: Cancellation): Promise<string>;
  close(): void;
}

export interface TokenVectors {
  values: Float32Array;
  counts: number[];
  width: number;
}

/** Texts per call, if it is not the default. */
export const batch: number | undefined;
export function load(name: string, options: string, cancellation?: Cancellation): Promise<Model>;
export function command(interpreter: string[], argv: string[]): number;
export function addPackage(folder: string): void;
