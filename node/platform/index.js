"use strict";
// The package for a platform: the native module, which finds ONNX Runtime next to it.

const { existsSync } = require("node:fs");
const path = require("node:path");

// Not by `require`: bundlers cannot read the file, but file tracing finds it by this path.
const native = { exports: {} };
process.dlopen(native, path.join(__dirname, "kivuml.node"));
const library = path.join(__dirname, "lib");
if (existsSync(library)) native.exports.addPackage(library);

module.exports = native.exports;
