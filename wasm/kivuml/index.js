// All modules, so that browsers fetch them at once.
import "./arguments.js";
import "./files.js";
import "./kivuml_wasm.js";
import "./native.js";
import { classes } from "./errors.js";

export const {
  ClosedError,
  ConfigError,
  DeadlineExceededError,
  InferenceError,
  InvalidError,
  KivuError,
  KivuOSError,
  ModelError,
  TooLargeError,
  UnavailableError,
  UnknownModelError,
} = classes;
export { load } from "./load.js";
export { Model } from "./model.js";
