import type { Cancellation, Model } from "./native-module.js";
import type { ModuleSource } from "./index.js";

export { Cancellation, Model };
export const batch: number;
export function use(module: ModuleSource | undefined, instructions?: string): void;
export function memory(): number;
export function instructionSet(): string;
export function open(
  manifest: string,
  read: (name: string, hash: string) => Promise<Uint8Array>,
  module?: ModuleSource,
): Promise<Model>;
