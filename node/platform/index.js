"use strict";
// The package for a platform: the native module, which finds ONNX Runtime next to it.

const { existsSync } = require("node:fs");
const path = require("node:path");

const native = require("./kivuml.node");
const library = path.join(__dirname, "lib");
if (existsSync(library)) native.addPackage(library);

module.exports = native;
