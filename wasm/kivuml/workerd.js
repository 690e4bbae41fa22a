// The entry for workerd, where modules are compiled before the program starts. It has relaxed instructions.

import module from "./kivuml-relaxed.wasm";
import { use } from "./native.js";

use(module);

export * from "./index.js";
