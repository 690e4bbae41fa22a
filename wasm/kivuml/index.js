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
