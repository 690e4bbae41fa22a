"use strict";
// Loads models by name.

const { fileURLToPath } = require("node:url");

const { asJson, asOptions, typeName } = require("./arguments.js");
const { wrongType } = require("./errors.js");
const { cancellable, opened } = require("./model.js");
const native = require("./native.js");

/** @type {typeof import("./index").load} */
async function load(name, options) {
  const path = /** @type {unknown} */ (name) instanceof URL ? fileURLToPath(name) : name;
  if (typeof path !== "string") throw wrongType(`expected \`name\` to be a string or a URL, but found ${typeName(name)}`);
  const known = /** @type {const} */ (["task", "precision", "engine", "threads", "home", "config", "allow", "signal"]);
  const { signal, ...settings } = asOptions(options, known);
  const json = asJson(settings);
  return opened(await cancellable(signal, (cancellation) => native.load(path, json, cancellation)));
}

module.exports = { load };
