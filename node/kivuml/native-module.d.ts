// The native module, `node/src`.

export class Cancellation {
  cancel(): void;
}

export class Model {
  description(): string;
  run(task: Task, inputs: (string | string[])[], first: number, parameters: string, cancellation?: Cancellation): Promise<any>;
  close(): void;
}

export type Task =
  | "encode"
  | "multi_vectors"
  | "sparse"
  | "classify"
  | "zero_shot"
  | "entities"
  | "extract"
  | "rank"
  | "translate"
  | "generate"
  | "tokenize"
  | "restore";

/** Texts per call, if it is not the default. */
export const batch: number | undefined;
export function load(name: string, options: string, cancellation?: Cancellation): Promise<Model>;
export function command(interpreter: string[], argv: string[]): number;
export function addPackage(folder: string): void;
