// Reads a JSON array of AsyncAPI documents from stdin and says what the official parser makes of each.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Parser } = createRequire(`${process.cwd()}/`)("@asyncapi/parser");
const parser = new Parser();
const answers = [];
for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  const { document: parsed, diagnostics } = await parser.parse(JSON.stringify(document));
  answers.push({
    operations: parsed === undefined ? null : parsed.operations().all().map((one) => one.id()),
    problems: diagnostics
      .filter((one) => one.severity <= 1)
      .map((one) => `${one.path.join("/")}: ${one.message}`),
  });
}
process.stdout.write(JSON.stringify(answers));
