/** Computes the answers to the vectors that both languages share. */

import { readFileSync } from "node:fs";
import {
  CanonicalError,
  canonicalJson,
  connectMessage,
  connectToken,
  escapeToken,
  eventPattern,
  eventSubject,
  flowMessage,
  inboxPrefix,
  loginMessage,
  requestId,
  requestMessage,
  SessionKey,
  ValidationError,
} from "accord-fabric";

interface Vectors {
  canonical: { value: unknown }[];
  numbers: { hex: string }[];
  tokens: { value: string }[];
  subjects: { template: string; payload: unknown; where: Record<string, string | number> }[];
  requestIds: { own: string; key: string | null }[];
  proofs: {
    seed: string;
    digest: string;
    iat: number;
    subject: string;
    payload: string;
    requestId: string;
    redirectTo: string;
    context: unknown;
    flowId: string;
  }[];
}

const given: Vectors = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8"));
const utf8 = new TextEncoder();

const proofs = given.proofs.map(async (each) => {
  const key = await SessionKey.fromSeed(each.seed);
  const message = requestMessage(
    key.id,
    each.subject,
    utf8.encode(each.payload),
    each.iat,
    each.requestId,
  );
  return {
    session: key.id,
    inbox: inboxPrefix(key.id),
    connect: await key.prove(connectMessage(each.digest, each.iat)),
    token: await connectToken(key, each.digest, each.iat),
    request: await key.prove(message),
    login: await key.prove(loginMessage(each.redirectTo, each.context)),
    flow: await key.prove(flowMessage(each.flowId)),
  };
});

const doubles = given.numbers.map(({ hex }) => {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, BigInt(`0x${hex}`));
  try {
    return canonicalJson(view.getFloat64(0));
  } catch (error) {
    if (error instanceof CanonicalError) return null;
    throw error;
  }
});

const identities = given.requestIds.map(({ own, key }) => {
  try {
    return requestId(own, key ?? undefined);
  } catch (error) {
    if (error instanceof ValidationError) return null;
    throw error;
  }
});

console.log(
  JSON.stringify({
    canonical: given.canonical.map(({ value }) => canonicalJson(value)),
    numbers: doubles,
    tokens: given.tokens.map(({ value }) => escapeToken(value)),
    subjects: given.subjects.map(({ template, payload, where }) => [
      eventSubject(template, payload),
      eventPattern(template, where),
    ]),
    requestIds: identities,
    proofs: await Promise.all(proofs),
  }),
);
