#!/usr/bin/env node
// A web service that searches a folder of texts by meaning, with the model in its own process.
//
//     npm install ./target/addon
//     node examples/search_service.mjs examples/texts sentence-transformers/all-MiniLM-L6-v2
//     curl 'http://127.0.0.1:3000/search?q=I+forgot+my+password'
//
// Embeds every paragraph of every `.txt` file at the start. The vectors have length 1, so the cosine of two is their dot
// product. A search ends when its client disconnects. PORT changes the port.

import { once } from "node:events";
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";

import { InvalidError, load } from "kivuml";

const SHOWN = 3;
const [folder, name] = process.argv.slice(2);
if (name === undefined) {
  console.error("usage: search_service.mjs FOLDER MODEL");
  process.exit(2);
}

const paragraphs = readdirSync(folder)
  .filter((file) => file.endsWith(".txt"))
  .flatMap((file) =>
    readFileSync(path.join(folder, file), "utf8")
      .split("\n\n")
      .map((text) => ({ file, text: text.replace(/\s+/g, " ").trim() }))
      .filter(({ text }) => text !== ""),
  );
const model = await load(name);
const vectors = await model.encode(paragraphs.map(({ text }) => text), { normalize: true });

async function search(question, signal) {
  const query = await model.encode(question, { normalize: true, signal });
  const score = (vector) => vector.reduce((sum, value, place) => sum + value * query[place], 0);
  const found = paragraphs.map((paragraph, place) => ({ score: score(vectors[place]), ...paragraph }));
  return found.sort((left, right) => right.score - left.score).slice(0, SHOWN);
}

const server = createServer(async (request, response) => {
  const [route] = request.url.split("?", 1);
  const question = new URLSearchParams(request.url.slice(route.length)).get("q");
  const disconnected = new AbortController();
  response.on("close", () => disconnected.abort());
  const answer = (status, body) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
  if (route !== "/search" || !question) return answer(404, { error: "expected `/search?q=QUESTION`" });
  try {
    answer(200, await search(question, disconnected.signal));
  } catch (error) {
    if (!disconnected.signal.aborted) answer(error instanceof InvalidError ? 400 : 500, { error: error.message });
  }
});
server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1");
await once(server, "listening");
console.log(`${paragraphs.length} paragraphs on http://127.0.0.1:${server.address().port}`);
