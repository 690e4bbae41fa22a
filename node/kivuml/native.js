"use strict";
// The native module for this platform, which finds ONNX Runtime next to it.

const { existsSync } = require("node:fs");
const path = require("node:path");

/** @returns {string} The module's path: in this package, or in the package for this platform. */
function locate() {
  const own = path.join(__dirname, "native", "kivuml.node");
  if (existsSync(own)) return own;
  const name = `kivuml-${process.platform}-${process.arch}`;
  try {
    return require.resolve(`${name}/kivuml.node`);
  } catch {
    throw new Error(
      `expected the npm package \`${name}\`, but found none; there are packages for linux-x64 and linux-arm64 with ` +
        "glibc 2.28 or later, which `--omit=optional` leaves out",
    );
  }
}

const file = locate();
/** @type {import("./native-module")} */
const native = require(file);
const library = path.join(path.dirname(file), "lib");
if (existsSync(library)) native.addPackage(library);

module.exports = native;
