// Makes transformers.js in Node.js use onnxruntime-web, as it does in browsers: both for `import` and for `require`.

import { registerHooks } from "node:module";

registerHooks({
  resolve: (name, context, next) => next(name === "onnxruntime-node" ? "onnxruntime-web" : name, context),
});
