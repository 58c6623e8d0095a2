// Serves the emulated Bot API on a free port of this machine, says which, and ends with its parent.
import { createRequire } from "node:module";

const TelegramServer = createRequire(`${process.cwd()}/`)("telegram-test-api");
const server = new TelegramServer({ host: "127.0.0.1", storeTimeout: 600 });
server.config.port = 0;
await server.start();
process.stdout.write(`${server.server.address().port}\n`);
process.stdin.on("end", () => process.exit(0));
process.stdin.resume();
