"use strict";

// Relative to the page, so that a stage of API Gateway or a prefix is kept.
const base = location.origin + location.pathname.replace(/\/*$/, "/");
const address = (path) => new URL(path, base).href;
const $ = (id) => document.getElementById(id);
for (const link of document.querySelectorAll("nav a")) link.href = address(link.getAttribute("href"));

/** An element with attributes and children; text is always text, never markup. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("--") || name === "width") element.style.setProperty(name, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const state = { models: [], memory: null, model: null, form: "", drafts: {}, labels: {}, shown: null, answer: null, running: null, tab: 0, version: "" };

// ---- Tasks: form, example, request and result of each.

const EXAMPLES = {
  entities: "Sarah Jones moved from London to Lisbon in May.\nThe lake near Zürich is calm this morning.",
  en: "The lake is calm this morning.\nWhere is the nearest station?\nWe would like to book a table for two, please.",
  pt: "O lago está calmo esta manhã.\nOnde fica a estação mais próxima?\nGostaríamos de reservar uma mesa para dois, por favor.",
};

const RANKING = {
  query: "How can I keep bread fresh?",
  example: "Store a loaf in a paper bag at room temperature.\nThe bakery opens at six.\nFreeze what you do not eat within two days.\nTrains to the lake leave every hour.",
  show: showRanks,
  clients: rankingClients,
};

const TASKS = {
  "feature-extraction": {
    title: "Compare texts by meaning",
    note: "Each text is embedded as a vector; the table shows each pair's cosine similarity.",
    example: "How do I reset my password?\nI cannot log in to my account\nThe invoice shows the wrong amount\nI was charged twice this month\nWhat is the weather like at the lake?",
    path: () => "embed",
    body: ({ texts }) => ({ model: state.model.name, inputs: texts }),
    show: showVectors,
    clients: embeddingClients,
  },
  // Vector kinds other than dense.
  sparse: {
    title: "Find the words that a text is about",
    note: "Each text has token weights, largest first.",
    example: "How do I reset my password?\nThe lake is calm this morning.",
    path: () => "embed_sparse",
    body: ({ texts }) => ({ model: state.model.name, inputs: texts, words: true }),
    show: (answer, { texts }) => answer.map((weights, place) => showWeights(texts[place], weights)),
    clients: () => [],
  },
  multi_vector: {
    title: "Rank texts by late interaction",
    note: "Each token has a vector. The score is the mean over query tokens: for each, the largest dot product with a text token.",
    ...RANKING,
    path: () => "rerank",
    body: ({ query, texts }) => ({ model: state.model.name, query, texts }),
  },
  "text-classification": {
    title: "Classify texts",
    note: (model) => `The model's labels: ${list(model.labels ?? [])}.`,
    example: "I love how quickly this works!\nThe parcel arrived on Tuesday.\nThe worst service I have ever had.",
    body: ({ texts }) => ({ inputs: texts }),
    show: (answer, { texts }) => answer.map((scores, place) => scored(texts[place], scores)),
    clients: ({ texts }) => hub(texts, "text_classification(text)"),
  },
  "token-classification": {
    title: "Find entities",
    note: (model) => `The model's labels: ${list(model.labels ?? [])}.`,
    example: EXAMPLES.entities,
    redacts: true,
    body: ({ texts, redact }) => ({ inputs: texts, parameters: { aggregation_strategy: "first", ...redact } }),
    show: showEntities,
    clients: ({ texts, redact }) => (redact ? [] : hub(texts, 'token_classification(text, aggregation_strategy="first")')),
  },
  "zero-shot-entities": {
    title: "Find entities by your own labels",
    note: "The model was not trained for these labels. Change them to search the texts again.",
    example: EXAMPLES.entities,
    labels: ["person", "city", "month"],
    redacts: true,
    body: ({ texts, labels, several, redact }) => ({
      inputs: texts,
      parameters: { candidate_labels: labels, ...(several && { multi_label: true }), ...redact },
    }),
    show: showEntities,
    clients: () => [],
  },
  "zero-shot-classification": {
    title: "Classify texts by your own labels",
    note: ({ strategy }) =>
      "The model was not trained for these labels. Change them to score the texts again." +
      (strategy === "embedding" ? " It compares the meaning of texts and labels, so it finds topics, but misses negation." : ""),
    example: "The home team won the match in extra time.\nFold the egg whites into the batter.\nParliament votes on the budget today.",
    labels: ["sport", "cooking", "politics"],
    body: ({ texts, labels, several }) => ({
      inputs: texts,
      parameters: { candidate_labels: labels, ...(several && { multi_label: true }) },
    }),
    show: (answer, { texts }) => answer.map((scores, place) => scored(texts[place], scores)),
    clients: ({ texts, labels, several }) =>
      hub(texts, `zero_shot_classification(text, ${python(labels)}${several ? ", multi_label=True" : ""})`),
  },
  "text-ranking": {
    title: "Rank texts by a query",
    note: "The texts are ordered by their score, highest first.",
    ...RANKING,
    body: ({ query, texts }) => ({ inputs: { query, texts } }),
  },
  translation: {
    title: "Translate",
    note: "Each line is translated separately.",
    example: (model) => EXAMPLES[code(model.languages?.from[0])] ?? EXAMPLES.en,
    body: ({ texts, source, target }) => ({
      inputs: texts,
      ...(hasChoice() && { parameters: { src_lang: source, tgt_lang: target } }),
    }),
    show: showTranslation,
    clients: ({ texts, source, target }) =>
      hub(texts, `translation(text${hasChoice() ? `, src_lang=${python(source)}, tgt_lang=${python(target)}` : ""})`),
  },
  summarization: {
    title: "Summarize texts",
    note: "Each line is summarized separately.",
    example: "The old bridge was closed on Monday, after engineers had found deep cracks in one of its pillars. The repairs will take until the end of the year, and buses use the road through the valley until then.",
    body: ({ texts }) => ({ inputs: texts }),
    show: (answer, { texts }) => showGenerated(answer, texts, "Summary", "summary_text"),
    clients: ({ texts }) => hub(texts, "summarization(text)"),
  },
  "text2text-generation": {
    title: "Generate a text from a text",
    note: "Each line is a separate text. Many models expect an instruction in it.",
    example: "translate English to German: Where is the nearest train station?",
    body: ({ texts }) => ({ inputs: texts }),
    show: (answer, { texts }) => showGenerated(answer, texts, "Generated text", "generated_text"),
    clients: () => [],
  },
};

/** Tasks in the list of models. */
const NAMES = {
  "feature-extraction": "embeddings",
  "text-classification": "labels",
  "token-classification": "entities",
  "zero-shot-classification": "your own labels",
  "text-ranking": "ranking",
  "text2text-generation": "generated texts",
  summarization: "summaries",
  translation: "translations",
};

const OTHER = { title: "Run the model", note: "", example: "", body: ({ texts }) => ({ inputs: texts }), show: showJson, clients: () => [] };

/** Models that find entities have labels, or take those of requests. */
const kind = ({ task, labels }) => (task === "token-classification" && !labels ? "zero-shot-entities" : task);
const task = () => TASKS[$("kind").value] ?? TASKS[kind(state.model)] ?? OTHER;
const path = () => task().path?.() ?? `models/${encodeURIComponent(state.model.name)}`;
const resolve = (value) => (typeof value === "function" ? value(state.model) : value);
const hasChoice = () => {
  const { from = [], to = [] } = state.model.languages ?? {};
  return from.length > 1 || to.length > 1;
};

/** The values of the form. */
function readForm() {
  const lines = $("texts").value.split("\n").map((line) => line.trim());
  return {
    texts: lines.filter(Boolean),
    query: $("query").value.trim(),
    labels: state.labels[state.model.name] ?? [],
    several: $("several").checked,
    redact: task().redacts && $("redact").checked ? { redact: true, redact_style: "number", patterns: "all" } : undefined,
    source: $("source").value,
    target: $("target").value,
  };
}

/** The first empty required field, and a message. */
function missing({ texts, query, labels }) {
  if (!$("query-field").hidden && !query) return ["query", "Enter a query."];
  if (!texts.length) return ["texts", "Enter a text."];
  if (!$("labels-field").hidden && !labels.length) return ["label", "Add a label first."];
  return null;
}

// ---- Requests.

/** The name of the server's key in this tab's storage, where the browser has one. */
const KEY = `kivu key ${base}`;
try {
  $("key").value = sessionStorage.getItem(KEY) ?? "";
} catch {}

function keepKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {}
}

/** Sends a request; throws an error with the server's message. */
async function request(way, body, signal) {
  const headers = { accept: "application/json" };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  if (body) headers["content-type"] = "application/json";
  const started = performance.now();
  const method = body ? "POST" : "GET";
  const response = await fetch(address(way), { method, headers, signal, body: body && JSON.stringify(body) });
  const text = await response.text();
  const took = performance.now() - started;
  if (response.status === 401 || response.status === 403) $("unlock").hidden = false;
  keepKey(response.status === 401 ? "" : $("key").value);
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = null;
  }
  if (!response.ok) throw new Error(errorMessage(response.status, answer));
  return { answer, took, headers: response.headers };
}

function errorMessage(status, answer) {
  const candidates = [answer?.error?.message, answer?.error, answer?.message, answer?.detail];
  const words = candidates.find((text) => typeof text === "string");
  if (words) return words;
  return status === 401 ? "The server requires a valid key." : `The server responded with status ${status}.`;
}

/** Sends the form's request. The page scrolls to the result, unless nobody has asked for it. */
async function run(scrolls = true) {
  const input = readForm();
  const gap = missing(input);
  if (gap) {
    state.running?.abort();
    clearResult();
    showError(gap[1]);
    $(gap[0]).focus();
    return;
  }
  state.running?.abort();
  const running = (state.running = new AbortController());
  const model = state.model;
  $("run").setAttribute("aria-busy", "true");
  $("result").classList.add("old");
  try {
    const { answer, took, headers } = await request(path(), task().body(input), running.signal);
    if (running.signal.aborted || model !== state.model) return;
    showError("");
    $("result").replaceChildren(...[task().show(answer, input)].flat());
    showRaw(answer);
    const count = input.texts.length;
    showStatus(`${count} ${count === 1 ? "text" : "texts"} answered in ${milliseconds(took)}.${truncationNote(headers)}`);
    state.shown = model.name;
    // On a phone the result is below the form.
    if (scrolls && $("answer").getBoundingClientRect().top > innerHeight * 0.8) $("answer").scrollIntoView({ block: "start" });
    showTime(headers, took);
    $("details").hidden = false;
    showTokens(input, running.signal);
  } catch (error) {
    if (running.signal.aborted) return;
    clearResult();
    showError(error instanceof TypeError ? "The server cannot be reached." : error.message);
  } finally {
    if (state.running === running) {
      $("run").removeAttribute("aria-busy");
      $("result").classList.remove("old");
    }
  }
}

const showStatus = (text) => ($("status").textContent = text);

/** An old result next to an error would look like the result of the failed request. */
function clearResult() {
  $("result").replaceChildren();
  $("raw").hidden = $("details").hidden = true;
  state.shown = null;
  showStatus("");
}

/** The response as JSON, whose text is made when it is opened. */
function showRaw(answer) {
  state.answer = answer;
  $("raw").hidden = false;
  $("json-copied").textContent = "";
  fillRaw();
}

function fillRaw() {
  const max = 20000;
  if (!$("raw").open || $("raw").hidden) return;
  const text = JSON.stringify(state.answer);
  $("json").textContent = text.length > max ? `${text.slice(0, max)} …` : text;
}

function showError(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text;
}

function truncationNote(headers) {
  const cut = headers.get("x-truncated");
  if (!cut) return "";
  const places = cut.split(",").map((place) => (isNaN(place) ? place : Number(place) + 1));
  return ` Truncated: text ${places.join(", ")}.`;
}

// ---- Results.

/** A text with a bar for each score, as a part of `whole`; those after the first `most` are folded. */
function scored(text, scores, shown = percent, whole = 1, most = 5) {
  const bars = scores.map(({ label, score }, place) =>
    el("li", { class: place ? "" : "best" }, el("span", {}, label), track(score / whole), el("span", { class: "number" }, shown(score))),
  );
  const all = el("div", { class: "scored" }, el("p", { class: "text" }, text), el("ul", { class: "bars" }, ...bars.slice(0, most)));
  const others = bars.slice(most);
  if (others.length) all.append(el("details", {}, el("summary", {}, `${others.length} more`), el("ul", { class: "bars" }, ...others)));
  return all;
}

/** The largest weights of a sparse vector. */
function showWeights(text, weights) {
  const max = 20;
  const sorted = weights.sort((left, right) => right.value - left.value);
  const shown = sorted.slice(0, max).map(({ index, value, word = `${index}` }) => ({ label: word, score: value }));
  const bars = scored(text, shown, (value) => value.toFixed(3), shown[0]?.score, max);
  const rest = weights.length > max ? `; the ${max} largest are shown` : "";
  bars.append(el("p", { class: "note" }, `${weights.length} weights${rest}.`));
  return bars;
}
/** Texts with marked entities, beside the texts in which they are replaced if that was asked for. */
function showEntities(answer, { texts, redact }) {
  if (!redact) return answer.map((entities, place) => marked(texts[place], entities));
  return sides(["Text", "Redacted"], answer.map(({ text, entities }, place) => [marked(texts[place], entities), text]));
}

/** A text whose entities are marked; their places count characters, not UTF-16 units. */
function marked(text, entities) {
  const characters = [...text];
  const parts = [];
  let done = 0;
  for (const { entity_group: label, score, start, end } of entities) {
    if (start < done) continue;
    const name = el("span", { class: "label" }, label);
    const title = `${label}, ${percent(score)}`;
    parts.push(characters.slice(done, start).join(""), el("mark", { title }, characters.slice(start, end).join(""), name));
    done = end;
  }
  return el("p", { class: "scored entities" }, ...parts, characters.slice(done).join(""));
}

function track(part) {
  const width = `${Math.max(0, Math.min(1, part)) * 100}%`;
  return el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: "fill", width }));
}

function showRanks(answer, { texts }) {
  const item = ({ index, score }) =>
    el("li", {}, el("p", {}, texts[index]), el("span", { class: "number" }, score.toFixed(3)), track(score));
  return el("ol", { class: "ranks", "aria-label": "Texts, highest score first" }, ...answer.map(item));
}

function showVectors(vectors, { texts }) {
  if (vectors.length === 1) return showVector(vectors[0]);
  const max = 40;
  const shown = vectors.slice(0, max);
  const head = el("tr", {}, el("td"), ...shown.map((_, place) => el("th", { scope: "col" }, `${place + 1}`)));
  const rows = shown.map((vector, row) => {
    const cells = shown.map((other, column) => {
      const cosine = vector.reduce((sum, value, place) => sum + value * other[place], 0);
      const kind = row === column ? "self" : cosine > 0.65 ? "hot" : undefined;
      const title = `${texts[row]} — ${texts[column]}`;
      return el("td", { class: kind, title, "--part": `${Math.max(0, cosine) * 100}%` }, cosine.toFixed(2));
    });
    const name = el("th", { scope: "row", title: texts[row] }, el("b", {}, `${row + 1}`), texts[row]);
    return el("tr", {}, name, ...cells);
  });
  const rest = vectors.length > max ? ` The first ${max} of ${vectors.length} texts.` : "";
  const caption = el("caption", {}, `Cosine similarity of each pair of texts: 1 is the same meaning, 0 is unrelated.${rest}`);
  return el("table", { class: "heat" }, caption, el("thead", {}, head), el("tbody", {}, ...rows));
}

function showVector(vector) {
  const largest = Math.max(...vector.map(Math.abs));
  const bar = (value) =>
    el("i", { "--part": `${(Math.abs(value) / largest) * 100}%`, "--tone": value < 0 ? "var(--stage-2)" : "var(--heat)" });
  const first = vector.slice(0, 6).map((value) => value.toFixed(3)).join(", ");
  const strip = el("div", { class: "strip", role: "img", "aria-label": `a vector of ${vector.length} values` }, ...vector.map(bar));
  return [strip, el("p", { class: "note" }, `${vector.length} values: ${first}, … Add a second text to compare them.`)];
}

function showTranslation(answer, { texts, source, target }) {
  const row = ({ translation_text: text }, place) =>
    el("tr", {}, el("td", { lang: code(source) }, texts[place]), el("td", { lang: code(target) }, text));
  const head = [source, target].map((name) => el("th", { scope: "col" }, language(name)));
  return el("table", { class: "sides" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...answer.map(row)));
}

function showGenerated(answer, texts, title, field) {
  return sides(["Text", title], answer.map((generated, place) => [texts[place], generated[field]]));
}

/** A table with two columns. */
function sides(names, rows) {
  const head = names.map((name) => el("th", { scope: "col" }, name));
  const row = (cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell)));
  return el("table", { class: "sides" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows.map(row)));
}

function showJson(answer) {
  return el("pre", {}, JSON.stringify(answer, null, 2).slice(0, 20000));
}

// ---- Time and tokens.

const isLocal = /^(localhost|127\..*|\[::1\])$/.test(location.hostname);

function showTime(headers, took) {
  const found = [...(headers.get("server-timing") ?? "").matchAll(/([\w-]+);dur=([\d.]+)/g)];
  const ms = Object.fromEntries(found.map(([, name, duration]) => [name, Number(duration)]));
  const total = ms.total ?? Number(headers.get("x-total-time") ?? 0);
  const [tokenization, inference] = [ms.tokenization ?? 0, ms.inference ?? 0];
  const stages = [
    ["Tokenization", tokenization],
    ["Inference, with the wait for it", inference],
    ["Other server work", Math.max(0, total - tokenization - inference)],
    [isLocal ? "Browser and connection" : "Network and browser", Math.max(0, took - total)],
  ];
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const rows = stages.map(([name, duration], place) => {
    const tone = `var(--stage-${place + 1})`;
    const part = el("i", { "--tone": tone });
    part.style.flexGrow = Math.max(duration, took / 500);
    part.style.background = tone;
    bar.append(part);
    return el("tr", { "--tone": tone }, el("th", { scope: "row" }, name), el("td", {}, milliseconds(duration)));
  });
  rows.push(el("tr", {}, el("th", { scope: "row" }, "Total"), el("td", {}, milliseconds(took))));
  const kind = headers.get("x-compute-type");
  const where = `Served by ${location.host}${kind ? ` on its ${kind === "cpu" ? "CPU" : kind}` : ""}, Kivu ${state.version}. `;
  const how = `Model: ${state.model.name}, ${state.model.architecture} in ${state.model.precision}.`;
  const tokens = headers.get("x-compute-tokens");
  const speed = tokens ? ` ${tokens} tokens.` : "";
  $("stages").replaceChildren(
    bar,
    el("table", { class: "stages", "aria-label": "Durations by stage" }, el("tbody", {}, ...rows)),
    el("p", { class: "note where" }, where + how + speed),
  );
}

async function showTokens({ texts, query, source, target }, signal) {
  const max = 800;
  const inputs = $("query-field").hidden ? texts : [query, ...texts];
  try {
    const { answer } = await request(
      "tokenize",
      { model: state.model.name, inputs, ...(hasChoice() && { src_lang: source, tgt_lang: target }) },
      signal,
    );
    if (signal.aborted) return;
    const count = answer.reduce((sum, tokens) => sum + tokens.length, 0);
    let left = max;
    const rows = answer.map((tokens) => {
      const shown = tokens.slice(0, left);
      left -= shown.length;
      const name = `${shown.length} tokens`;
      return el("ul", { class: "cut", "aria-label": name }, ...shown.map(token));
    });
    const rest = count > max ? `; the first ${max} are shown` : "";
    $("token-count").textContent =
      `${inputs.length === 1 ? "The text has" : `The ${inputs.length} texts have`} ${count} tokens` +
      `${rest}. The model reads up to ${state.model.max_tokens} tokens per text.`;
    $("tokens").replaceChildren(...rows.filter((row) => row.children.length));
  } catch (error) {
    if (signal.aborted) return;
    $("token-count").textContent = error.message;
    $("tokens").replaceChildren();
  }
}

function token({ id, text, special }) {
  return el("li", { class: special ? "special" : undefined, title: `token ${id}` }, text || `#${id}`);
}

// ---- The request as code.

const python = (value) => {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  return JSON.stringify(value);
};
const isLocked = () => Boolean($("key").value);

function hub(texts, call) {
  const key = isLocked() ? ', token=os.environ["API_KEY"]' : "";
  return [
    [
      "Python, huggingface_hub",
      `${isLocked() ? "import os\n" : ""}from huggingface_hub import InferenceClient\n\n` +
        `client = InferenceClient(${python(address(`models/${encodeURIComponent(state.model.name)}`))}${key})\n` +
        `for text in ${python(texts)}:\n    print(client.${call})`,
    ],
  ];
}

function embeddingClients({ texts }) {
  const [first, ...others] = texts.length ? texts : [""];
  const key = isLocked() ? 'os.environ["API_KEY"]' : '"none"';
  const os = isLocked() ? "import os\n" : "";
  const openai =
    `${os}from openai import OpenAI\n\nclient = OpenAI(base_url=${python(address("v1"))}, api_key=${key})\n` +
    `answer = client.embeddings.create(model=${python(state.model.name)}, input=${python(texts)})\n` +
    "for item in answer.data:\n    print(item.index, item.embedding[:4])";
  const call = others.length
    ? `sentence_similarity(${python(first)}, other_sentences=${python(others)})`
    : `feature_extraction(${python(first)})`;
  const token = isLocked() ? ', token=os.environ["API_KEY"]' : "";
  const client =
    `${os}from huggingface_hub import InferenceClient\n\n` +
    `client = InferenceClient(${python(address(`models/${encodeURIComponent(state.model.name)}`))}${token})\nprint(client.${call})`;
  const cohere =
    `${os}import cohere\n\nclient = cohere.ClientV2(base_url=${python(base.replace(/\/$/, ""))}, api_key=${key})\n` +
    `answer = client.embed(model=${python(state.model.name)}, texts=${python(texts)},\n` +
    '    input_type="search_document", embedding_types=["float"])\n' +
    "for vector in answer.embeddings.float_:\n    print(vector[:4])";
  return [["Python, openai", openai], ["Python, huggingface_hub", client], ["Python, cohere", cohere]];
}

function rankingClients({ query, texts }) {
  const key = isLocked() ? 'os.environ["API_KEY"]' : '"none"';
  const code =
    `${isLocked() ? "import os\n" : ""}import cohere\n\nclient = cohere.ClientV2(base_url=${python(base.replace(/\/$/, ""))}, api_key=${key})\n` +
    `answer = client.rerank(model=${python(state.model.name)}, query=${python(query)}, documents=${python(texts)})\n` +
    "for result in answer.results:\n    print(result.index, result.relevance_score)";
  return [["Python, cohere", code]];
}

function snippets() {
  const input = readForm();
  const body = task().body(input);
  const url = address(path());
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const key = isLocked() ? ` \\\n  -H "authorization: Bearer $API_KEY"` : "";
  const curl = `curl ${url} \\\n  -H 'content-type: application/json'${key} \\\n  -d '${quoted}'`;
  const header = isLocked() ? ", authorization: `Bearer ${process.env.API_KEY}`" : "";
  const javascript =
    `const response = await fetch(${JSON.stringify(url)}, {\n  method: "POST",\n` +
    `  headers: { "content-type": "application/json"${header} },\n  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),\n` +
    "});\nconsole.log(await response.json());";
  return [["curl", curl], ...task().clients(input), ["JavaScript", javascript]];
}

function showCode() {
  const all = snippets();
  state.tab = Math.min(state.tab, all.length - 1);
  if ([...$("tabs").children].map((tab) => tab.textContent).join() !== all.map(([name]) => name).join()) {
    const tab = ([name], place) =>
      el("button", { type: "button", role: "tab", id: `tab-${place}`, "aria-controls": "snippet", onclick: () => chooseTab(place) }, name);
    $("tabs").replaceChildren(...all.map(tab));
  }
  [...$("tabs").children].forEach((tab, place) => {
    tab.setAttribute("aria-selected", place === state.tab);
    tab.tabIndex = place === state.tab ? 0 : -1;
  });
  $("snippet").setAttribute("aria-labelledby", `tab-${state.tab}`);
  $("snippet").textContent = all[state.tab][1];
}

function chooseTab(place) {
  state.tab = place;
  $("copied").textContent = "";
  showCode();
}

$("tabs").addEventListener("keydown", (event) => {
  const count = $("tabs").children.length;
  const to = { ArrowRight: state.tab + 1, ArrowLeft: state.tab - 1 + count, Home: 0, End: count - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  chooseTab(to % count);
  $("tabs").children[state.tab].focus();
});

/** Copies a text; where the browser does not allow it, selects the element that shows it. */
async function copy(text, shown, note) {
  try {
    await navigator.clipboard.writeText(text);
    note.textContent = "Copied.";
  } catch {
    // Browsers allow access to the clipboard on localhost and https only.
    shown.textContent = text;
    getSelection().selectAllChildren(shown);
    note.textContent = "Selected; press Ctrl+C to copy.";
  }
}

$("copy").addEventListener("click", () => copy($("snippet").textContent, $("snippet"), $("copied")));
$("copy-json").addEventListener("click", () => copy(JSON.stringify(state.answer), $("json"), $("json-copied")));
$("raw").addEventListener("toggle", fillRaw);

// ---- Labels.

function showLabels() {
  const names = state.labels[state.model.name] ?? [];
  const item = (name) =>
    el("li", {}, name, el("button", { type: "button", "aria-label": `Remove label ${name}`, onclick: () => removeLabel(name) }, "×"));
  $("labels").replaceChildren(...names.map(item));
}

function setLabels(names) {
  state.labels[state.model.name] = names;
  showLabels();
  edited();
}

function addLabel() {
  const known = state.labels[state.model.name];
  const name = $("label").value.trim();
  $("label").value = "";
  $("label").focus();
  if (name && !known.includes(name)) setLabels([...known, name]);
}

function removeLabel(name) {
  const known = state.labels[state.model.name];
  const place = known.indexOf(name);
  setLabels(known.filter((other) => other !== name));
  const buttons = $("labels").querySelectorAll("button");
  (buttons[Math.min(place, buttons.length - 1)] ?? $("label")).focus();
}

/** Updates the code, and runs the request again if its result is shown. */
function edited() {
  showCode();
  if (state.shown === state.model.name && !missing(readForm())) run();
}

// ---- Choosing a model.

function keepDraft() {
  if (state.form) state.drafts[state.form] = { texts: $("texts").value, query: $("query").value };
}

function chooseModel(model) {
  keepDraft();
  state.model = model;
  const kinds = model.task === "feature-extraction" ? Object.keys(model.outputs ?? {}) : [];
  $("kind").replaceChildren(...kinds.map((kind) => el("option", { value: kind }, kind.replace("_", "-"))));
  $("kind-field").hidden = kinds.length < 2;
  $("languages-field").hidden = !hasChoice();
  showLanguages(model.languages);
  showForm();
  history.replaceState(null, "", `#${encodeURIComponent(model.name)}`);
}

/** Shows the form of the chosen model and kind of vectors. */
function showForm() {
  state.running?.abort();
  const { model } = state;
  state.form = `${model.name} ${$("kind").value}`;
  const { title, note, example, query, labels } = task();
  const draft = state.drafts[state.form] ?? { texts: resolve(example), query: query ?? "" };
  state.labels[model.name] ??= labels ?? [];
  $("task-title").textContent = title;
  $("task-note").textContent = resolve(note);
  $("texts").value = draft.texts;
  $("query").value = draft.query;
  $("query-field").hidden = query === undefined;
  $("labels-field").hidden = labels === undefined;
  $("redact-field").hidden = !task().redacts;
  showLabels();
  $("ask").hidden = $("code").hidden = false;
  $("run").removeAttribute("aria-busy");
  clearResult();
  $("result").classList.remove("old");
  showError("");
  showStatus("Press Run to try the example.");
  showCode();
}

function showLanguages(languages) {
  for (const [id, names = []] of [["source", languages?.from], ["target", languages?.to]]) {
    const options = names.map((name) => el("option", { value: name }, language(name)));
    $(id).replaceChildren(...options.sort((a, b) => a.text.localeCompare(b.text)));
  }
  const { from = [], to = [] } = languages ?? {};
  const english = from.find((name) => code(name) === "en");
  $("source").value = english ?? from[0] ?? "";
  $("target").value = to.find((name) => name !== $("source").value) ?? to[0] ?? "";
}

/** The language code of `eng_Latn`, `en` or `en_XX`. */
function code(name = "") {
  try {
    return new Intl.Locale(name.replaceAll("_", "-").replace(/-XX$/, "")).language;
  } catch {
    return "";
  }
}

function language(name = "") {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(name.replaceAll("_", "-")) ?? name;
  } catch {
    return name;
  }
}

/** A model's state, where models come and go. */
function memory({ state: now, memory: bytes, last_use: used }) {
  if (!state.memory) return "";
  const ago = used ? `, used ${new Date(used * 1000).toLocaleTimeString()}` : "";
  return `, ${now}${bytes ? `, ${Math.round(bytes / 1e6)} MB` : ""}${ago}`;
}

function showModels() {
  const option = (model, place) => {
    const input = el("input", { type: "radio", name: "model", id: `model-${place}`, onchange: () => chooseModel(model) });
    return el("label", { for: `model-${place}` }, input, model.name, el("span", {}, NAMES[model.task] ?? model.task, memory(model)));
  };
  $("model-list").replaceChildren(...state.models.map(option));
  $("models").hidden = false;
  chooseNamed();
}

/** Chooses the model in the fragment of the URL, or the first one. */
function chooseNamed() {
  const place = Math.max(0, state.models.findIndex((model) => `#${encodeURIComponent(model.name)}` === location.hash));
  $(`model-${place}`).checked = true;
  if (state.model !== state.models[place]) chooseModel(state.models[place]);
}

async function start() {
  try {
    const { answer } = await request("models");
    state.models = answer.models;
    state.memory = answer.memory;
    state.version = answer.version;
    showError("");
    $("about").textContent = `Try the ${state.models.length === 1 ? "model" : `${state.models.length} models`} of this server`;
    showModels();
    // Models on demand would be loaded.
    if (!state.memory) run(false);
  } catch (error) {
    const isFirst = !$("unlock").hidden && !$("key").value;
    showStatus(isFirst ? "Enter a key to see the models." : "");
    showError(isFirst ? "" : error instanceof TypeError ? "The server cannot be reached." : error.message);
    if (!$("unlock").hidden) $("key").focus();
  }
}

// ---- Formatting.

const list = (names) => names.map((name) => `“${name}”`).join(", ");
const percent = (part) => `${(part * 100).toFixed(1)} %`;
const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(2) : ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
$("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  } else if (event.key === "Enter" && event.target === $("label")) {
    event.preventDefault();
    addLabel();
  }
});
$("ask").addEventListener("input", (event) => {
  if (event.target !== $("label")) showCode();
});
$("kind").addEventListener("change", () => {
  keepDraft();
  showForm();
});
for (const id of ["several", "redact", "source", "target"]) $(id).addEventListener("change", edited);
$("add-label").addEventListener("click", addLabel);
$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  if (state.model) run();
  else start();
});
if (/Mac|iPhone|iPad/.test(navigator.userAgent)) $("hint").firstElementChild.textContent = "⌘";
addEventListener("hashchange", () => state.models.length && chooseNamed());
start();
