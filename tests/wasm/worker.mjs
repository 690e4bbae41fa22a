// Serves the worker in examples/edge by workerd.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const EXAMPLE = fileURLToPath(new URL("../../examples/edge", import.meta.url));

async function freePort() {
  const server = createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address();
  server.close();
  return port;
}

/**
 * Serves the example with a bundle, until `end` is called: the worker keeps this process alive.
 *
 * @param {{ workerd: string, package: string, bundle: string }} paths
 */
export async function serve({ workerd, package: kivuml, bundle }) {
  const folder = mkdtempSync(path.join(tmpdir(), "kivuml-edge-"));
  for (const file of ["worker.js", "config.capnp"]) cpSync(path.join(EXAMPLE, file), path.join(folder, file));
  mkdirSync(path.join(folder, "node_modules"));
  symlinkSync(path.resolve(kivuml), path.join(folder, "node_modules/kivuml-wasm"));
  cpSync(bundle, path.join(folder, "model"), { recursive: true, dereference: true });
  const address = `127.0.0.1:${await freePort()}`;
  const words = ["serve", "config.capnp", "--experimental", `--socket-addr=http=${address}`];
  const worker = spawn(workerd, words, { cwd: folder, stdio: ["ignore", "inherit", "inherit"] });
  const end = () => {
    worker.kill("SIGKILL");
    rmSync(folder, { recursive: true });
  };
  const url = `http://${address}`;
  for (let wait = 0; wait < 200; wait++) {
    if (await fetch(url).then(() => true, () => false)) return { url, pid: worker.pid, end };
    await delay(50);
  }
  end();
  throw new Error("expected workerd to serve, but it does not");
}

/** The memory of a process, in bytes. */
export function residentBytes(pid) {
  return Number(readFileSync(`/proc/${pid}/status`, "utf8").match(/VmRSS:\s+(\d+)/)[1]) * 1024;
}
