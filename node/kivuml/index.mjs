// The same module as for `require`, so that a program has each class once.
import kivuml from "./index.js";

export const {
  ClosedError,
  ConfigError,
  DeadlineExceededError,
  InferenceError,
  InvalidError,
  KivuError,
  KivuOSError,
  Model,
  ModelError,
  TooLargeError,
  UnavailableError,
  UnknownModelError,
  load,
} = kivuml;
