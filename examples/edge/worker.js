// An embeddings service at the edge, with OpenAI's API: see README.md.

import { InvalidError, KivuError, TooLargeError, load } from "kivuml-wasm";

const MAX_TEXTS = 64;

/** The model, once a request has asked for it. */
let loading;

function model({ MODEL }) {
  // Another service has the bundle's files; their contents are verified.
  const fetch = (url, options) => MODEL.fetch(url, options);
  loading ??= load("http://model/", { fetch, cache: false }).catch((error) => {
    loading = undefined;
    throw error;
  });
  return loading;
}

export default {
  async fetch(request, env) {
    try {
      const { pathname } = new URL(request.url);
      if (pathname !== "/v1/embeddings") return failed(404, `expected \`/v1/embeddings\`, but found \`${pathname}\``);
      if (request.method !== "POST") return failed(405, `expected \`POST\`, but found \`${request.method}\``);
      return Response.json(await embeddings(await body(request), await model(env)));
    } catch (error) {
      if (error instanceof InvalidError || error instanceof TypeError) return failed(400, error.message);
      if (error instanceof TooLargeError) return failed(413, error.message);
      if (error instanceof KivuError) return failed(500, error.message);
      throw error;
    }
  },
};

async function body(request) {
  try {
    return await request.json();
  } catch {
    throw new InvalidError("expected a JSON body, but found another one");
  }
}

async function embeddings({ input, dimensions, encoding_format: format = "float" }, opened) {
  const texts = Array.isArray(input) ? input : [input];
  if (texts.length > MAX_TEXTS) throw new TooLargeError(`expected at most ${MAX_TEXTS} texts in \`input\`, but found ${texts.length}`);
  if (!["float", "base64"].includes(format)) throw new InvalidError("expected `encoding_format` among `float`, `base64`");
  const vectors = await opened.encode(texts, { dimensions, normalize: true });
  const tokens = (await opened.tokenize(texts)).reduce((sum, text) => sum + Math.min(text.length, opened.maxTokens), 0);
  const data = vectors.map((vector, index) => ({
    object: "embedding",
    index,
    embedding: format === "base64" ? base64(vector) : Array.from(vector),
  }));
  return { object: "list", data, model: opened.name, usage: { prompt_tokens: tokens, total_tokens: tokens } };
}

function base64({ buffer, byteOffset, byteLength }) {
  return btoa(String.fromCharCode(...new Uint8Array(buffer, byteOffset, byteLength)));
}

function failed(status, message) {
  const type = status < 500 ? "invalid_request_error" : "server_error";
  return Response.json({ error: { message, type, param: null, code: null } }, { status });
}
