/** What the tests do with the client, in Node and in a browser alike. */

import {
  beginLogin,
  bindLogin,
  ConflictError,
  connect,
  type Contract,
  FabricError,
  type Received,
  type Run,
  type Session,
  SessionKey,
  ValidationError,
} from "accord-fabric";
import { Client as Shop, contract as shopContract, SoldOutError, type types as shop } from "shop-v1";
import { contract, statePrefs } from "shopper-v1";
import { Client as Stall, type types as stall } from "stall-v1";

let key: SessionKey;
let session: Session;
let run: Run<stall.Step, stall.Step> | undefined;
let sold: AsyncGenerator<Received<shop.Item>, void, void>;

async function failure(work: Promise<unknown>): Promise<FabricError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof FabricError) return error;
    throw error;
  }
  throw new Error("it did not fail");
}

function told(error: FabricError): object {
  return { type: error.type, message: error.message };
}

export const steps = {
  async login({ authority }: { authority: string }) {
    key = await SessionKey.generate();
    const refused = await failure(connect({ authority, key, contract, patience: 0 }));
    const login = await beginLogin(authority, key, contract, "https://app.example/back");
    return { refused: refused.type, login };
  },

  async bind({ authority, flow }: { authority: string; flow: string }) {
    await bindLogin(authority, key, flow);
    session = await connect({ authority, key, contract });
    return { key: session.key };
  },

  async buy({ name, count }: { name: string; count: number }) {
    return await new Shop(session).callShopBuy({ name, count });
  },

  async errors() {
    const client = new Shop(session);
    const soldOut = await failure(client.callShopBuy({ name: "ladder", count: 100 }));
    const wrong = await failure(client.callShopBuy({ name: "ladder", count: 900 }));
    const open: Contract = { ...shopContract, manifest: { ...shopContract.manifest, schemas: {} } };
    const remote = await failure(session.client(open).call("Shop.Buy", { name: 7 }));
    const forbidden = await failure(client.publishShopSold({ name: "ladder" }, { within: 3000 }));
    return {
      soldOut: soldOut instanceof SoldOutError ? { ...told(soldOut), ...soldOut.members } : null,
      wrong: wrong instanceof ValidationError ? wrong.issues : told(wrong),
      remote: remote instanceof ValidationError ? remote.issues : told(remote),
      forbidden: forbidden.type,
    };
  },

  async listen() {
    sold = await new Shop(session).subscribeShopSold();
  },

  async heard() {
    const event = (await sold.next()).value;
    return event?.payload;
  },

  async upload({ size }: { size: number }) {
    const show = await new Shop(session).startShopShow({ name: "cat" });
    const info = await show.upload(new Blob([new Uint8Array(size)]));
    return { stored: info.size, answered: await show.result() };
  },

  async state() {
    const prefs = statePrefs(session);
    const revision = await prefs.put("door", { color: "red" }, 0);
    const conflict = await failure(prefs.put("door", { color: "blue" }, 0));
    await prefs.change("door", (found) => ({ color: `dark ${found?.color}` }));
    const entries: string[] = [];
    for await (const entry of prefs.entries()) entries.push(`${entry.key}: ${entry.value.color}`);
    return {
      revision: revision > 0,
      conflict: conflict instanceof ConflictError,
      entries,
      gone: await prefs.delete("door"),
      none: (await prefs.get("door")) === undefined,
    };
  },

  async feed() {
    const numbers: number[] = [];
    for await (const step of new Stall(session).feedStallCount({ n: 3 })) numbers.push(step.n);
    return numbers;
  },

  async download() {
    const grant = await new Stall(session).callStallFetch({ n: 1 });
    let size = 0;
    let sum = 0;
    for await (const chunk of session.download(grant)) {
      size += chunk.length;
      for (const byte of chunk) sum += byte;
    }
    return { size, sum };
  },

  async start() {
    run = await new Stall(session).startStallWalk({ n: 1 });
    return run.id;
  },

  async signal({ n }: { n: number }) {
    if (!run) throw new Error("nothing runs");
    for (;;) {
      try {
        return await new Stall(session).signalStallWalk_go(run, { n });
      } catch (error) {
        if (!(error instanceof FabricError) || error.type === "ValidationError") throw error;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  },

  async result() {
    const revisions: number[] = [];
    if (!run) throw new Error("nothing runs");
    for await (const snapshot of run.watch()) revisions.push(snapshot.revision);
    return { output: await run.result(), rising: revisions.every((r, at) => r > (revisions[at - 1] ?? 0)) };
  },

  async cancel() {
    const other = await new Stall(session).startStallWalk({ n: 1 });
    return { state: (await other.cancel()).state, failed: told(await failure(other.result())) };
  },

  /** Call until it succeeds, and tell which errors came before. */
  async insist({ n }: { n: number }) {
    const errors = new Set<string>();
    for (;;) {
      try {
        const answer = await new Stall(session).callStallDouble({ n }, { within: 2000 });
        return { answer, errors: [...errors] };
      } catch (error) {
        if (!(error instanceof FabricError)) throw error;
        errors.add(error.type);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  },

  /** One request, as often as it is asked for under its key. */
  async bump({ n, key }: { n: number; key: string }) {
    return await new Stall(session).callStallBump({ n }, { key, within: 30_000 });
  },

  async keys({ n, key }: { n: number; key: string }) {
    const client = new Stall(session);
    const other = await failure(client.callStallBump({ n: n + 1 }, { key }));
    const wrong = await failure(client.callStallBump({ n }, { key: "no spaces" }));
    const unkept = await failure(client.callStallDouble({ n }, { key }));
    const first = await client.startStallWalk({ n }, { key });
    const again = await client.startStallWalk({ n }, { key });
    await again.cancel();
    return {
      other: other instanceof ConflictError,
      wrong: wrong instanceof ValidationError,
      unkept: unkept instanceof ValidationError,
      same: first.id === again.id,
    };
  },

  async double({ n }: { n: number }) {
    return await new Stall(session).callStallDouble({ n });
  },

  async fail({ name, payload }: { name: string; payload: unknown }) {
    return told(await failure(new Stall(session).wire.call(name, payload, { within: 3000 })));
  },

  async close() {
    await session.close();
    return told(await failure(new Stall(session).callStallDouble({ n: 1 })));
  },
};

/** Do one step; used by the drivers. */
export function perform(step: keyof typeof steps, given: unknown): Promise<unknown> {
  const does = steps[step] as (given: unknown) => Promise<unknown>;
  return does(given);
}
