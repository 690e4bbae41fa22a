// Makes transformers.js in Node.js use onnxruntime-web, as it does in browsers.

import { register } from "node:module";

const resolve = `export const resolve = (name, context, next) => next(name === "onnxruntime-node" ? "onnxruntime-web" : name, context);`;
register(`data:text/javascript,${encodeURIComponent(resolve)}`, import.meta.url);
