/** Computes what other implementations computed: canonical texts and proofs. */

import { readFileSync } from "node:fs";
import {
  CanonicalError,
  canonicalJson,
  connectMessage,
  connectToken,
  flowMessage,
  loginMessage,
  requestMessage,
  SessionKey,
} from "accord-fabric";

interface Known {
  texts: string[];
  values: unknown[];
  proofs: {
    seed: string;
    oauthInit: { redirectTo: string };
    flowBind: { flowId: string };
    natsConnect: { contractDigest: string; iat: number };
    rpcProof: { subject: string; payload: string; iat: number; requestId: string };
  }[];
}

const known: Known = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8"));

function canonical(value: unknown): string | null {
  try {
    return canonicalJson(value);
  } catch (error) {
    if (error instanceof CanonicalError) return null;
    throw error;
  }
}

const proofs = known.proofs.map(async ({ seed, oauthInit, flowBind, natsConnect, rpcProof }) => {
  const key = await SessionKey.fromSeed(seed);
  const { contractDigest, iat } = natsConnect;
  const { subject, payload, requestId } = rpcProof;
  const data = new TextEncoder().encode(payload);
  return {
    sessionKey: key.id,
    login: await key.prove(loginMessage(oauthInit.redirectTo, null)),
    flow: await key.prove(flowMessage(flowBind.flowId)),
    connect: await key.prove(connectMessage(contractDigest, iat)),
    token: await connectToken(key, contractDigest, iat),
    request: await key.prove(requestMessage(key.id, subject, data, rpcProof.iat, requestId)),
  };
});

console.log(
  JSON.stringify({
    texts: known.texts.map((text) => canonical(JSON.parse(text))),
    values: known.values.map(canonical),
    proofs: await Promise.all(proofs),
  }),
);
