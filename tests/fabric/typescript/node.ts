/** Does steps of the named program: it reads a line of JSON each, and prints what came of them. */

import { createInterface } from "node:readline";

const { perform } = await import(`./${process.argv[2]}.js`);

for await (const line of createInterface({ input: process.stdin })) {
  const { step, given } = JSON.parse(line);
  try {
    console.log(JSON.stringify({ ok: (await perform(step, given)) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: String((error as Error).stack) }));
  }
}
