#!/usr/bin/env node
// Starts the program of the package for this platform.
const { spawn } = require("child_process");

const name = `kivuml-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/kivu`);
} catch {
  console.error(
    `error: expected the npm package \`${name}\`, but found none; there are packages for linux-x64 and linux-arm64 ` +
      "with glibc 2.28 or later, which `--omit=optional` leaves out",
  );
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends this to both processes.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("exit", (status) => process.exit(status ?? 1));
