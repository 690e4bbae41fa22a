import type { Cancellation, Model } from "./native-module.js";
import type { ModuleSource } from "./index.js";

export { Cancellation, Model };
/** Takes a file's next piece. */
export type Take = (piece: Uint8Array) => void;
/** Passes the pieces of a file with a BLAKE3 hash to a function. */
export type Read = (name: string, hash: string, take: Take) => Promise<void>;
export const batch: number;
export function use(module: ModuleSource | undefined, instructions?: string): void;
export function memory(): number;
export function instructionSet(): string;
export function open(manifest: string | Promise<string>, read: Read, module?: ModuleSource): Promise<Model>;
