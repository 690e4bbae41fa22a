#!/usr/bin/env node
"use strict";
// The `kivu` command.

/** @type {import("./native-module")} */
let native;
try {
  native = require("./native.js");
} catch (error) {
  console.error(`error: ${error instanceof Error ? error.message : error}`);
  process.exit(1);
}
// The command has handlers of its own, and Node's would raise these signals again.
for (const signal of ["SIGINT", "SIGTERM"]) {
  const ignore = () => {};
  process.on(signal, ignore).off(signal, ignore);
}
process.exit(native.command([process.execPath, __filename], ["kivu", ...process.argv.slice(2)]));
