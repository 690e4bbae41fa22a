// Prints the errors that Ruby's own parser finds in a file: node formula.mjs TOOLS FILE
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [tools, file] = process.argv.slice(2);
const { loadPrism } = await import(pathToFileURL(`${tools}/node_modules/@ruby/prism/src/index.js`));
const parse = await loadPrism();
const { errors } = parse(readFileSync(file, "utf8"));
for (const error of errors) console.log(error.message);
process.exit(errors.length > 0 ? 1 : 0);
