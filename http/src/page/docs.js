"use strict";

// Relative to the page, so that a stage of API Gateway or a prefix is kept.
const documentUrl = new URL("openapi.json", location.href);
const base = new URL("./", location.href).href;
const $ = (id) => document.getElementById(id);

/** An element with attributes and children; text is always text, never markup. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat());
  return element;
}

/** Text with code in backticks. */
function prose(text = "") {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

// ---- Schemas as text.

let schemas = {};

/** The schema behind a reference. */
function resolve(schema = {}) {
  return schema.$ref ? resolve(schemas[schema.$ref.split("/").pop()]) : schema;
}

const isNull = (schema) => resolve(schema).type === "null";

/** A short description of the values of a schema. */
function words(schema, depth = 0) {
  const { type, oneOf, anyOf, allOf, items, minItems, maxItems, format, const: value, enum: values, pattern } = resolve(schema);
  if (oneOf || anyOf) {
    const parts = (oneOf ?? anyOf).filter((part) => !isNull(part)).map((part) => words(part, depth));
    const isList = (oneOf ?? anyOf).every((part) => resolve(part).const !== undefined || isNull(part));
    return [...new Set(parts)].join(isList ? ", " : " or ");
  }
  if (value !== undefined) return JSON.stringify(value);
  if (values) return values.filter((value) => value !== null).map((value) => JSON.stringify(value)).join(", ");
  if (pattern) return JSON.stringify(pattern.replace(/^\^|\$$/g, ""));
  const kind = Array.isArray(type) ? type.find((name) => name !== "null") : type;
  if (kind === "array") {
    const count = minItems === maxItems && maxItems ? `${maxItems} of ` : "list of ";
    return `${count}${depth > 3 ? "…" : nested(words(items, depth + 1))}`;
  }
  if (kind === "integer") return "whole number";
  if (format === "binary") return "bytes";
  return { string: "text", number: "number", boolean: "true or false", object: "object" }[kind] ?? (allOf ? "object" : "anything");
}

const nested = (text) => (text.includes(" or ") ? `(${text})` : text);

/** The fields of a schema with their paths, such as `inputs.sentences`. */
function fields(schema, prefix = "", depth = 0, found = new Map()) {
  const { properties, required = [], allOf, oneOf, anyOf, items } = resolve(schema);
  for (const part of [...(allOf ?? []), ...(oneOf ?? []), ...(anyOf ?? [])]) fields(part, prefix, depth, found);
  if (items && depth < 4) fields(items, `${prefix}[]`, depth + 1, found);
  // The document is sorted by name; the required fields are what readers look for first.
  const byNeed = ([left], [right]) => required.includes(right) - required.includes(left);
  for (const [name, field] of Object.entries(properties ?? {}).sort(byNeed)) {
    const path = (prefix ? `${prefix}.` : "") + name;
    const kind = words(field);
    const known = found.get(path);
    if (known) {
      if (!known.kinds.includes(kind)) known.kinds.push(kind);
      known.isRequired &&= required.includes(name);
    } else {
      const text = field.description ?? resolve(field).description ?? "";
      found.set(path, { kinds: [kind], isRequired: required.includes(name), text });
    }
    if (depth < 4) fields(field, path, depth + 1, found);
  }
  return found;
}

function table(head, rows, label) {
  const cells = (row) => el("tr", {}, row.map((cell) => el("td", {}, cell)));
  const names = el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)));
  const content = [el("thead", {}, names), el("tbody", {}, rows.map(cells))];
  // On a phone the cells are below each other, for which the role has to be said.
  return el("div", { class: "scroll" }, el("table", { class: "fields", role: "table", "aria-label": label }, content));
}

function fieldTable(schema, label) {
  const found = [...fields(schema)];
  if (!found.length) return el("p", { class: "note" }, `${words(schema)}.`);
  const rows = found.map(([name, { kinds, isRequired, text }]) => [
    el("code", {}, name),
    kinds.join(" or "),
    [isRequired ? el("b", {}, "required. ") : "", ...prose(text)],
  ]);
  return table(["Field", "Type", "Description"], rows, label);
}

// ---- Routes.

const operations = new Map();
const searched = new Map();

/** All words of a route: its description, and its fields with theirs. */
function wordsOf(details) {
  if (!searched.has(details)) {
    const { method, path, operation } = operations.get(details);
    const bodies = [operation.requestBody, operation.responses["200"]].map((body) => body?.content?.["application/json"]?.schema);
    const named = bodies.flatMap((schema) => [...fields(schema)]).map(([name, { text }]) => `${name} ${text}`);
    const texts = [method, path, operation.operationId, operation.summary, operation.description, ...operation.tags, ...named];
    searched.set(details, texts.join(" ").toLowerCase());
  }
  return searched.get(details);
}

/** The examples of a media type, as pairs of name and value. */
function examples(content = {}) {
  const named = Object.entries(content.examples ?? {}).map(([name, { summary, value }]) => [summary ?? name, value]);
  return content.example !== undefined ? [["", content.example], ...named] : named;
}

// Served models, unless they are listed for keys only.
let models = [];

/** The name of a served model for an example: for the task in its name, or for what its body has. */
function served(name, body) {
  if (!body) return models[0].name;
  const isEmbedding = ({ task, outputs }) => task === "feature-extraction" && (body.outputs ?? []).every((kind) => outputs[kind]);
  const does =
    TASKS.find((task) => name.startsWith(task)) ??
    (body.documents || body.texts && body.query ? "text-ranking" : body.src_lang ? "translation" : "feature-extraction");
  const takesLabels = name.endsWith("with labels");
  const fits = (model) =>
    does === "feature-extraction" ? isEmbedding(model)
    : model.task === does && (does !== "token-classification" || takesLabels === !model.labels);
  return models.find(fits)?.name;
}

const TASKS = [
  "feature-extraction", "text-classification", "token-classification", "zero-shot-classification", "text-ranking", "translation",
  "summarization", "text2text-generation",
];

/** An example's path and body with a served model's name, and whether there is one. */
function localize(path, name, body) {
  const takesModel = path.includes("{model}") || (body?.model !== undefined && path !== "/api/pull");
  if (!models.length || !takesModel) return { path, body, isServed: true };
  const model = models.some((model) => model.name === body?.model) ? body.model : served(name, body);
  if (!model) return { path, body, isServed: false };
  return {
    path: path.replace("{model}", encodeURIComponent(model)),
    body: body?.model === undefined ? body : { ...body, model },
    isServed: true,
  };
}

function curl(method, path, body, form) {
  const url = base + path.slice(1).replaceAll("{version}", "1").replace(/\{(\w+)\}/g, (_, name) => name.toUpperCase());
  if (method === "get") return `curl ${url}`;
  if (form) {
    const { properties, required } = resolve(form.schema);
    return `curl ${url}${required.map((name) => ` -F ${name}=${resolve(properties[name]).enum?.[0] ?? "@FILE"}`).join("")}`;
  }
  if (body === undefined) return `curl -X ${method.toUpperCase()} ${url}`;
  return `curl ${url} -H 'content-type: application/json' -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
}

function requestSection(method, path, operation) {
  const { "application/json": json, "multipart/form-data": form } = operation.requestBody?.content ?? {};
  const content = json ?? form;
  const given = examples(content);
  const parts = [el("h3", {}, "Request")];
  for (const parameter of operation.parameters ?? []) {
    const name = parameter.in === "path" ? `{${parameter.name}}` : `?${parameter.name}=`;
    parts.push(el("p", {}, el("code", {}, name), " ", ...prose(parameter.description)));
  }
  if (content) parts.push(fieldTable(content.schema, "Request fields"));
  for (const [name, value] of given.length ? given : [["", undefined]]) {
    const { isServed, ...example } = localize(path, name, value);
    const note = isServed ? name : `${name ? `${name}: ` : ""}this server has no such model`;
    if (note) parts.push(el("p", { class: "note" }, note));
    parts.push(el("pre", { tabindex: "0" }, curl(method, example.path, example.body, form)));
  }
  return parts;
}

function responseSection(operation) {
  const { description, content = {}, headers = {} } = operation.responses["200"];
  const parts = [el("h3", {}, "Response"), el("p", {}, ...prose(description))];
  for (const [kind, media] of Object.entries(content)) {
    parts.push(el("p", { class: "note" }, kind));
    if (kind === "application/json") parts.push(fieldTable(media.schema, "Response fields"));
    for (const [name, value] of examples(media)) {
      if (name) parts.push(el("p", { class: "note" }, name));
      parts.push(el("pre", { tabindex: "0" }, typeof value === "string" ? value : JSON.stringify(value)));
    }
  }
  const rows = Object.entries(headers).map(([name, header]) => [el("code", {}, name), prose(header.description)]);
  const headerTable = el("details", {}, el("summary", {}, "Headers"), table(["Header", "Description"], rows, "Response headers"));
  return [...parts, headerTable];
}

function errorSection(operation) {
  const others = Object.entries(operation.responses).filter(([status]) => status !== "200");
  const rows = others.map(([status, { description, content }]) => {
    const [[, value] = []] = examples(content?.["application/json"]);
    const example = value === undefined ? el("span", { class: "note" }, "no body") : el("code", {}, JSON.stringify(value));
    return [status, description, example];
  });
  return [el("h3", {}, "Errors"), table(["Status", "Meaning", "Example"], rows, "Errors")];
}

function route(path, method, operation) {
  const locked = operation.security ? el("span", { class: "locked" }, "requires a key") : "";
  const name = el("summary", {},
    el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path),
    el("span", { class: "what" }, operation.summary ?? ""), locked);
  const details = el("details", { class: "route panel", id: operation.operationId }, name);
  operations.set(details, { method, path, operation });
  // Created when it is first opened, so that the page loads quickly.
  const fill = () => {
    const note = operation.description ? [el("p", {}, ...prose(operation.description))] : [];
    details.append(el("div", { class: "inside" }, note, requestSection(method, path, operation), responseSection(operation), errorSection(operation)));
  };
  details.addEventListener("toggle", fill, { once: true });
  return details;
}

function show(api) {
  schemas = api.components?.schemas ?? {};
  $("about").textContent = `API of this server, version ${api.info.version}`;
  $("intro").replaceChildren(...prose(api.info.description));
  const all = Object.entries(api.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => ({ path, method, operation })),
  );
  const sections = api.tags.map((tag) => {
    const own = all.filter(({ operation }) => operation.tags.includes(tag.name));
    const routes = own.map(({ path, method, operation }) => route(path, method, operation));
    const head = [el("h2", {}, tag.name), el("p", { class: "note" }, tag.description)];
    return el("section", { "aria-label": tag.name }, head, routes);
  });
  $("routes").replaceChildren(...sections);
  filter();
  openNamed();
}

/** Opens the route in the fragment of the URL. */
function openNamed() {
  const named = location.hash && $(decodeURIComponent(location.hash.slice(1)));
  if (!named) return;
  named.open = true;
  named.scrollIntoView();
}

function filter() {
  const wanted = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const section of $("routes").children) {
    const routes = [...section.querySelectorAll(".route")];
    for (const one of routes) one.hidden = !wanted.every((word) => wordsOf(one).includes(word));
    const left = routes.filter((one) => !one.hidden).length;
    section.hidden = !left;
    count += left;
  }
  $("status").textContent = count ? `${count} ${count === 1 ? "route" : "routes"}.` : "No route has all of these words.";
}

$("filter").addEventListener("input", filter);
addEventListener("hashchange", openNamed);

/** Reads the served models, which a server with keys does not list for everybody. */
async function readModels(api) {
  if (api.paths["/models"]?.get.security) return api;
  const response = await fetch(new URL("models", base));
  if (response.ok) models = (await response.json()).models;
  return api;
}

fetch(documentUrl)
  .then((response) => (response.ok ? response.json() : Promise.reject(new Error(`status ${response.status}`))))
  .then(readModels)
  .then(show)
  .catch((error) => ($("status").textContent = `Cannot load openapi.json: ${error.message}.`));
