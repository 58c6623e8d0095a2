/** Lets the page do steps. */

import { perform } from "./scenario.js";

Object.assign(globalThis, { perform });
