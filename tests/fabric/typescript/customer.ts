/** A page that calls the shop of the guide, as an instance of a deployment. */

import { connect, FabricError, type Received, type Session, SessionKey } from "accord-fabric";
import { contract } from "customer-v1";
import { Client, SoldOutError, type types } from "shop-v1";

let session: Session;
let sold: AsyncGenerator<Received<types.Item>, void, void>;

const steps = {
  async enter({ authority, seed }: { authority: string; seed: string }) {
    session = await connect({ authority, key: await SessionKey.fromSeed(seed), contract });
    sold = await new Client(session).subscribeShopSold();
  },

  async buy(item: types.Item) {
    try {
      return await new Client(session).callShopBuy(item);
    } catch (error) {
      if (error instanceof SoldOutError) return { soldOut: error.members.left };
      if (error instanceof FabricError) return { refused: error.type };
      throw error;
    }
  },

  async heard() {
    return (await sold.next()).value?.payload;
  },

  async show({ name, bytes }: { name: string; bytes: number[] }) {
    const run = await new Client(session).startShopShow({ name });
    await run.upload(new Blob([Uint8Array.from(bytes)]));
    return await run.result();
  },

  async leave() {
    await session.close();
  },
};

Object.assign(globalThis, {
  perform: (step: keyof typeof steps, given: unknown) =>
    (steps[step] as (given: unknown) => Promise<unknown>)(given),
});
