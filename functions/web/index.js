// Starts `kivu serve` as the HTTP server of a Lambda Web Function, on the address that Lambda connects to.
//
// An experiment: AWS supports Node.js only, and lists Rust as unsupported.
"use strict";

const { spawn } = require("node:child_process");
const { accessSync, chmodSync, constants, copyFileSync, mkdtempSync, symlinkSync } = require("node:fs");
const { constants: system, tmpdir } = require("node:os");
const { join } = require("node:path");

/** The program; an archive that lost file modes needs an executable copy. */
function program() {
  const packed = join(__dirname, "kivu");
  try {
    accessSync(packed, constants.X_OK);
    return packed;
  } catch {
    const folder = mkdtempSync(join(tmpdir(), "kivu-"));
    const copy = join(folder, "kivu");
    copyFileSync(packed, copy);
    // The program looks for ONNX Runtime next to itself.
    symlinkSync(join(__dirname, "lib"), join(folder, "lib"));
    chmodSync(copy, 0o755);
    return copy;
  }
}

const address = process.env.AWS_LAMBDA_HTTP_ENDPOINT ?? "0.0.0.0:3000";
// The program ends when its standard input is closed, so that it never outlives this process.
const kivu = spawn(program(), ["serve", "--listen", address, "--until-stdin-closes"], {
  cwd: __dirname,
  env: { KIVU_HOME: tmpdir(), ...process.env },
  stdio: ["pipe", "pipe", "pipe"],
});
kivu.stdout.pipe(process.stdout);
kivu.stderr.pipe(process.stderr);
kivu.stdin.on("error", () => {});

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => kivu.kill(signal));
}
kivu.on("error", (error) => {
  console.error(`cannot start ${kivu.spawnfile}: ${error.message}`);
  process.exit(1);
});
// After the last line of the log.
kivu.on("close", (code, signal) => process.exit(code ?? 128 + system.signals[signal]));
