/** A session's key, and the messages that it signs. */

import { sha256 } from "@noble/hashes/sha2.js";
import { concat, fromBase64url, toBase64url, utf8 } from "./bytes.js";
import { encode } from "./canonical.js";
import { ValidationError } from "./errors.js";

// What precedes the 32 bytes of a seed in PKCS #8.
const PKCS8 = Uint8Array.from([
  0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
]);

/** An Ed25519 key of WebCrypto that identifies a session. */
export class SessionKey {
  private constructor(
    /** The public key in base64url, by which the session is known. */
    readonly id: string,
    /** To be kept in IndexedDB, which stores keys that scripts cannot read. */
    readonly pair: CryptoKeyPair,
  ) {}

  /** A new key; scripts cannot read its secret half unless it is `extractable`. */
  static async generate(extractable = false): Promise<SessionKey> {
    const made = await crypto.subtle.generateKey({ name: "Ed25519" }, extractable, [
      "sign",
      "verify",
    ]);
    return SessionKey.of(made as CryptoKeyPair);
  }

  /** The key of a kept pair. */
  static async of(pair: CryptoKeyPair): Promise<SessionKey> {
    const raw = await crypto.subtle.exportKey("raw", pair.publicKey);
    return new SessionKey(toBase64url(new Uint8Array(raw)), pair);
  }

  /** The key of a seed of 32 bytes in base64url. */
  static async fromSeed(seed: string): Promise<SessionKey> {
    const bytes = fromBase64url(seed);
    if (bytes.length !== 32) throw new TypeError("a seed has 32 bytes");
    const secret = await crypto.subtle.importKey(
      "pkcs8",
      concat(PKCS8, bytes),
      { name: "Ed25519" },
      true,
      ["sign"],
    );
    const { x } = await crypto.subtle.exportKey("jwk", secret);
    const raw = fromBase64url(x ?? "");
    const open = await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, true, ["verify"]);
    return new SessionKey(toBase64url(raw), { privateKey: secret, publicKey: open });
  }

  /** The proof for a message: the signature of its SHA-256. */
  async prove(message: Uint8Array): Promise<string> {
    const hash = sha256(message) as Uint8Array<ArrayBuffer>;
    const signed = await crypto.subtle.sign("Ed25519", this.pair.privateKey, hash);
    return toBase64url(new Uint8Array(signed));
  }
}

/** The message to connect or bootstrap under a contract; `iat` in seconds. */
export function connectMessage(digest: string, iat: number): Uint8Array {
  return utf8(`nats-connect:${iat}:${digest}`);
}

/** The message of a request: each part after its length in four bytes. */
export function requestMessage(
  session: string,
  subject: string,
  payload: Uint8Array,
  iat: number,
  requestId: string,
): Uint8Array {
  const parts = [
    utf8(session),
    utf8(subject),
    sha256(payload),
    utf8(String(iat)),
    utf8(requestId),
  ];
  return concat(
    ...parts.flatMap((part) => {
      const length = new Uint8Array(4);
      new DataView(length.buffer).setUint32(0, part.length);
      return [length, part];
    }),
  );
}

/** The id of a request, which carries its idempotency key if it has one. */
export function requestId(own: string, key?: string): string {
  if (key === undefined) return own;
  if (!/^[\x21-\x7e]{1,90}$/.test(key))
    throw new ValidationError(
      "this cannot be an idempotency key; use 1 to 90 printable ASCII characters without spaces",
    );
  return `${own}.k.${key}`;
}

/** The message to begin a login that ends at an address. */
export function loginMessage(redirectTo: string, context: unknown = null): Uint8Array {
  return utf8(`oauth-init:${redirectTo}:${encode(context)}`);
}

/** The message to bind a login to the session. */
export function flowMessage(flowId: string): Uint8Array {
  return utf8(`bind-flow:${flowId}`);
}

/** The token that a session presents to the NATS server. */
export async function connectToken(key: SessionKey, digest: string, iat: number): Promise<string> {
  const sig = await key.prove(connectMessage(digest, iat));
  return encode({ v: 1, sessionKey: key.id, contractDigest: digest, iat, sig });
}

/** The prefix of a session's reply subjects. */
export function inboxPrefix(session: string): string {
  return `_INBOX.${session.slice(0, 16)}`;
}

/** Seconds since the epoch. */
export function seconds(): number {
  return Math.floor(Date.now() / 1000);
}
