/** Walks with whatever version of the stall there is, by names and not by types. */

import {
  BootstrapError,
  type Client,
  connect,
  FabricError,
  type Migrations,
  type Received,
  RemoteError,
  type Run,
  type Session,
  SessionKey,
} from "accord-fabric";
import { contract as stall } from "stall-v1";
import { contract } from "walker-v1";

let session: Session;
let client: Client;
let run: Run;
let walked: AsyncGenerator<Received<unknown>, void, void>;
let ended: Promise<unknown>;

const migrations: Migrations = {
  "prefs.v1": (value) => ({ colors: [(value as { color: string }).color] }),
};

function told(error: unknown): object {
  if (!(error instanceof FabricError)) throw error;
  const more = error instanceof RemoteError ? { members: error.members } : {};
  const code = error instanceof BootstrapError ? { code: error.code } : {};
  return { error: error.type, message: error.message, ...more, ...code };
}

const steps = {
  async enter({ authority, seed }: { authority: string; seed: string }) {
    session = await connect({ authority, key: await SessionKey.fromSeed(seed), contract });
    client = session.client(stall);
    ended = session.ended.then(() => ({}), told);
    walked = await client.listen("Stall.Walked");
  },

  async call({ name, payload }: { name: string; payload: unknown }) {
    return await client.call(name, payload, { within: 3000 }).catch(told);
  },

  async feed({ payload }: { payload: unknown }) {
    const found: unknown[] = [];
    for await (const each of client.feed("Stall.Count", payload)) found.push(each);
    return found;
  },

  async start({ payload, key }: { payload: unknown; key: string }) {
    run = await client.start("Stall.Walk", payload, { key, within: 30_000 });
    return run.id;
  },

  async finish({ n }: { n: number }) {
    for (;;) {
      try {
        await run.signal("go", { n });
        return await run.result();
      } catch (error) {
        if (!(error instanceof FabricError) || error.type === "ValidationError") throw error;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  },

  async heard() {
    return (await walked.next()).value?.payload;
  },

  async put({ value }: { value: unknown }) {
    return (await session.stateMap("prefs").put("door", value)) > 0;
  },

  async kept() {
    const found = await session.stateMap("prefs", migrations).get("door").catch(told);
    return found && "value" in found ? found.value : found;
  },

  async close() {
    await session.close();
  },

  ended() {
    return ended;
  },
};

export function perform(step: keyof typeof steps, given: unknown): Promise<unknown> {
  return (steps[step] as (given: unknown) => Promise<unknown>)(given);
}
