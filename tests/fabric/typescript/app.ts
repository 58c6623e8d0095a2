/** An app in a page: it keeps its key, sends people to the authority, and buys when they are back. */

import { beginLogin, bindLogin, connect, FabricError, SessionKey } from "accord-fabric";
import { Client as Shop } from "shop-v1";
import { contract } from "shopper-v1";

const query = new URLSearchParams(location.search);
const authority = query.get("authority") ?? sessionStorage.getItem("authority") ?? "";
sessionStorage.setItem("authority", authority);

function show(text: string): void {
  const line = document.createElement("output");
  line.textContent = text;
  document.body.append(line);
}

function database(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("app", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("keys");
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
}

/** The key of this browser, kept where no script can read its secret half. */
async function ownKey(): Promise<SessionKey> {
  const opened = await database();
  const kept = await new Promise<CryptoKeyPair | undefined>((resolve, reject) => {
    const asking = opened.transaction("keys").objectStore("keys").get("own");
    asking.onsuccess = () => resolve(asking.result);
    asking.onerror = () => reject(asking.error);
  });
  if (kept) return await SessionKey.of(kept);
  const made = await SessionKey.generate();
  await new Promise<void>((resolve, reject) => {
    const writing = opened.transaction("keys", "readwrite");
    writing.objectStore("keys").put(made.pair, "own");
    writing.oncomplete = () => resolve();
    writing.onerror = () => reject(writing.error);
  });
  return made;
}

async function main(): Promise<void> {
  const key = await ownKey();
  const secret = await crypto.subtle.exportKey("pkcs8", key.pair.privateKey).then(
    () => "readable",
    () => "sealed",
  );
  const button = document.createElement("button");
  button.textContent = "Log in";
  button.onclick = async () => {
    const back = `${location.origin}/back`;
    location.assign((await beginLogin(authority, key, contract, back)).url);
  };
  document.body.append(button);
  const refused = query.get("authError");
  if (refused) show(`refused: ${refused}`);
  const flow = query.get("flowId");
  if (flow) {
    await bindLogin(authority, key, flow);
    // Who reloads the page does not bind twice.
    history.replaceState(null, "", "/back");
  }
  try {
    await using session = await connect({ authority, key, contract });
    const stock = await new Shop(session).callShopBuy({ name: "ladder" });
    show(`${stock.left} left, the key is ${secret}, and ${session.key === key.id}`);
  } catch (error) {
    if (!(error instanceof FabricError)) throw error;
    show(`not in: ${error.type}`);
  }
}

void main();
