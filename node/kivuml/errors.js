"use strict";
// Errors. Each is a `KivuError`, and its message is the server's: expected X, but found Y; what to do. Values of a wrong
// type are a `TypeError`.

class KivuError extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.code = "ERR_KIVU";
  }
}

/**
 * @param {string} name
 * @param {string} code
 * @returns {typeof KivuError}
 */
function subclass(name, code) {
  const made = class extends KivuError {
    /** @param {string} message @param {ErrorOptions} [options] */
    constructor(message, options) {
      super(message, options);
      this.code = code;
    }
  };
  Object.defineProperty(made, "name", { value: name });
  Object.defineProperty(made.prototype, "name", { value: name, configurable: true, writable: true });
  return made;
}

Object.defineProperty(KivuError.prototype, "name", { value: "KivuError", configurable: true, writable: true });

const classes = {
  KivuError,
  InvalidError: subclass("InvalidError", "ERR_KIVU_INVALID"),
  TooLargeError: subclass("TooLargeError", "ERR_KIVU_TOO_LARGE"),
  ClosedError: subclass("ClosedError", "ERR_KIVU_CLOSED"),
  UnknownModelError: subclass("UnknownModelError", "ERR_KIVU_UNKNOWN_MODEL"),
  ConfigError: subclass("ConfigError", "ERR_KIVU_CONFIG"),
  ModelError: subclass("ModelError", "ERR_KIVU_MODEL"),
  InferenceError: subclass("InferenceError", "ERR_KIVU_INFERENCE"),
  UnavailableError: subclass("UnavailableError", "ERR_KIVU_UNAVAILABLE"),
  DeadlineExceededError: subclass("DeadlineExceededError", "ERR_KIVU_DEADLINE_EXCEEDED"),
  KivuOSError: subclass("KivuOSError", "ERR_KIVU_OS"),
};

/**
 * The native module's error, whose `code` names its class, as an instance of that class.
 *
 * @param {any} error
 * @returns {unknown}
 */
function fromNative(error) {
  /** @type {Record<string, typeof KivuError>} */
  const known = classes;
  const found = Object.hasOwn(known, error?.code) ? known[error.code] : undefined;
  return found ? new found(error.message) : error;
}

/**
 * @param {string} message
 * @returns {TypeError} An error as Node's own for arguments of a wrong type.
 */
function wrongType(message) {
  return Object.assign(new TypeError(message), { code: "ERR_INVALID_ARG_TYPE" });
}

module.exports = { classes, fromNative, wrongType };
