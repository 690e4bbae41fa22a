"use strict";
// Arguments: texts, and options as JSON.

const { classes, wrongType } = require("./errors.js");

/**
 * The texts as a list of their own, and whether `value` is a single text. Texts are checked for their type here, and
 * for anything else by the native module.
 *
 * @param {unknown} value
 * @param {string} argument Its name.
 * @param {boolean} pairs Whether a text may be a pair of texts.
 * @returns {{ texts: any[], isSingle: boolean }}
 */
function asList(value, argument, pairs = false) {
  if (typeof value === "string") return { texts: [value], isSingle: true };
  // The elements of these are no texts.
  const isOther = value instanceof Map || value instanceof String || ArrayBuffer.isView(value);
  const isList = isObject(value) && Symbol.iterator in value && !isOther;
  if (!isList) {
    throw wrongType(`expected \`${argument}\` to be a string or an iterable of strings, but found ${typeName(value)}`);
  }
  const texts = Array.from(/** @type {Iterable<unknown>} */ (value));
  if (texts.length === 0) {
    throw new classes.InvalidError(`expected at least one text in \`${argument}\`, but found none`);
  }
  texts.forEach((text, index) => {
    if (pairs && Array.isArray(text)) text.forEach((part, number) => asText(part, `${argument}[${index}][${number}]`));
    else if (typeof text !== "string") asText(text, `${argument}[${index}]`);
  });
  return { texts, isSingle: false };
}

/**
 * @param {unknown} value
 * @param {string} place
 * @returns {string}
 */
function asText(value, place) {
  if (typeof value === "string") return value;
  throw wrongType(`expected \`${place}\` to be a string, but found ${typeName(value)}`);
}

/**
 * The options, all of which must be known.
 *
 * @template {string} Name
 * @param {unknown} given
 * @param {readonly Name[]} known
 * @returns {Partial<Record<Name, any>>}
 */
function asOptions(given, known) {
  if (given === undefined) return {};
  if (!isObject(given) || !isPlain(given)) {
    throw wrongType(`expected \`options\` to be an object, but found ${typeName(given)}`);
  }
  for (const name of Object.keys(given)) {
    if (!known.includes(/** @type {Name} */ (name))) {
      throw wrongType(`expected options among ${quoted(known)}, but found \`${name}\``);
    }
  }
  return given;
}

/**
 * Parameters that are set, as JSON.
 *
 * @param {Record<string, unknown>} parameters
 * @returns {string}
 */
function asJson(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  /** @this {any} @param {string} key */
  function member(key) {
    // As it was given: JSON makes texts of dates and URLs before they get here.
    return plain(this[key]);
  }
  return JSON.stringify(Object.fromEntries(given), member);
}

/** @param {unknown} value @returns {unknown} */
function plain(value) {
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new classes.InvalidError("expected finite numbers as parameters, but found another value");
  }
  if (value instanceof Set) return [...value];
  const isData = !isObject(value) || Array.isArray(value) || isPlain(value);
  if (!isData || ["bigint", "function", "symbol"].includes(typeof value)) {
    throw wrongType(`expected a parameter of a plain type, but found ${typeName(value)}`);
  }
  return value;
}

/** @param {object} value @returns {boolean} Whether all of it is in properties, unlike in a Map or a Promise. */
function isPlain(value) {
  return Object.prototype.toString.call(value) === "[object Object]";
}

/** @param {unknown} value @returns {value is object} */
function isObject(value) {
  return typeof value === "object" && value !== null;
}

/** @param {unknown} value @returns {string} The type's name for errors. */
function typeName(value) {
  if (value === null || value === undefined) return `\`${value}\``;
  const made = typeof value === "object" ? Object.getPrototypeOf(value)?.constructor?.name : undefined;
  return `\`${typeof made === "string" && made !== "" ? made : typeof value}\``;
}

/** @param {readonly string[]} names */
function quoted(names) {
  return names.map((name) => `\`${name}\``).join(", ");
}

module.exports = { asJson, asList, asOptions, asText, quoted, typeName };
