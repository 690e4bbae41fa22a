// The entry for workerd, where modules are compiled before the program starts.

import module from "./kivuml.wasm";
import { use } from "./native.js";

use(module);

export * from "./index.js";
