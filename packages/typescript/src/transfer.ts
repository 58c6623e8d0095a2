/** Files: uploads for operations, and downloads after an RPC. */

import { sha256 } from "@noble/hashes/sha2.js";
import nacl from "tweetnacl";
import { fromBase64url, toBase64url } from "./bytes.js";
import { parse } from "./contract.js";
import {
  DeadlineError,
  FabricError,
  UnauthorizedError,
  UnavailableError,
  ValidationError,
} from "./errors.js";
import { EMPTY, type Link, raiseError } from "./link.js";

/** What can be uploaded. */
export type Upload = Uint8Array | Blob | AsyncIterable<Uint8Array>;

const SEQUENCE = "trellis-transfer-seq";
const EOF = "trellis-transfer-eof";
const WINDOW = 32;
const FRAME = 20_000;
const TRIES = 3;
const LARGEST_CHUNK = 1 << 20;

interface Grant {
  readonly id: string;
  readonly subject: string;
  readonly chunkBytes: number;
  readonly maxBytes: number | undefined;
  readonly digest: string | undefined;
  readonly seal: Uint8Array | undefined;
}

/** Upload a file for a grant, such as `Run.transfer`; returns its description. */
export async function upload(
  link: Link,
  given: unknown,
  data: Upload,
): Promise<Readonly<Record<string, unknown>>> {
  const grant = read(link, given, "send");
  let sequence = 0;
  let size = data instanceof Blob ? data.size : data instanceof Uint8Array ? data.length : 0;
  const counted = size > 0;
  checkSize(grant, size);
  for await (const chunk of cut(data, grant.chunkBytes)) {
    if (!counted) size += chunk.length;
    checkSize(grant, size);
    await send(link, grant, chunk, sequence++, false);
  }
  const answer = await send(link, grant, EMPTY, sequence, true);
  const info = answer.info;
  if (answer.status !== "complete" || typeof info !== "object" || info === null)
    throw new ValidationError("the upload was not completed");
  return info as Readonly<Record<string, unknown>>;
}

/** The chunks of a file; an error means that those so far are not the whole file. */
export async function* download(
  link: Link,
  given: unknown,
): AsyncGenerator<Uint8Array, void, void> {
  const grant = read(link, given, "receive");
  const hash = sha256.create();
  const listen = (number: number) => link.subscribe(`${grant.subject}-${number}`);
  // One window ahead, so that sending does not pause between two windows.
  const windows = [await listen(0), await listen(1)];
  try {
    for (let sequence = 0; ; sequence++) {
      if (sequence > 0 && sequence % WINDOW === 0) {
        windows.shift()?.end();
        windows.push(await listen(sequence / WINDOW + 1));
      }
      const frame = await windows[0]?.backlog.get(FRAME);
      if (!frame) throw new DeadlineError("the download has stopped; ask for it again");
      raiseError(frame);
      const eof = frame.headers?.get(EOF) === "true";
      if (frame.headers?.get(SEQUENCE) !== String(sequence))
        throw new UnavailableError("a frame of the download was lost; ask for it again");
      const chunk = unseal(grant, frame.data, sequence, eof);
      if (eof) break;
      hash.update(chunk);
      yield chunk;
    }
  } finally {
    for (const window of windows) window.end();
  }
  const digest = grant.digest?.replace(/^SHA-256=/, "").replaceAll("=", "");
  if (toBase64url(hash.digest()) !== digest)
    throw new FabricError("the file is not the one that was granted");
}

async function send(
  link: Link,
  grant: Grant,
  data: Uint8Array,
  sequence: number,
  eof: boolean,
): Promise<Readonly<Record<string, unknown>>> {
  const id = `${grant.id}.${sequence}${eof ? ".eof" : ""}`;
  for (let attempt = 1; ; attempt++) {
    const headers = await link.signed(grant.subject, data, id);
    headers[SEQUENCE] = String(sequence);
    if (eof) headers[EOF] = "true";
    try {
      const answer = await link.ask(grant.subject, data, headers, FRAME);
      raiseError(answer);
      return parse(answer.data, "the answer") as Readonly<Record<string, unknown>>;
    } catch (error) {
      if (!(error instanceof DeadlineError) || attempt === TRIES) throw error;
    }
  }
}

function read(link: Link, given: unknown, direction: "send" | "receive"): Grant {
  const grant = (given ?? {}) as Readonly<Record<string, unknown>>;
  const { transferId, subject, chunkBytes, sessionKey, expiresAt, maxBytes, seal } = grant;
  const info = grant.info as { digest?: unknown } | undefined;
  if (
    grant.type !== "TransferGrant" ||
    grant.direction !== direction ||
    typeof transferId !== "string" ||
    typeof subject !== "string" ||
    typeof chunkBytes !== "number" ||
    !(chunkBytes > 0 && chunkBytes <= LARGEST_CHUNK)
  )
    throw new ValidationError(`not a transfer grant to ${direction}`);
  if (sessionKey !== link.key.id) throw new UnauthorizedError("the grant is another session's");
  if (!(Date.parse(String(expiresAt)) > Date.now()))
    throw new DeadlineError("the grant has run out; ask for it again");
  return {
    id: transferId,
    subject,
    chunkBytes,
    maxBytes: typeof maxBytes === "number" ? maxBytes : undefined,
    digest: typeof info?.digest === "string" ? info.digest : undefined,
    seal: typeof seal === "string" ? fromBase64url(seal) : undefined,
  };
}

function unseal(grant: Grant, data: Uint8Array, sequence: number, eof: boolean): Uint8Array {
  if (grant.seal?.length !== nacl.secretbox.keyLength)
    throw new ValidationError("the grant holds no key");
  const nonce = new Uint8Array(nacl.secretbox.nonceLength);
  nonce[0] = eof ? 1 : 0;
  new DataView(nonce.buffer).setBigUint64(nonce.length - 8, BigInt(sequence));
  const opened = nacl.secretbox.open(data, nonce, grant.seal);
  if (!opened) throw new UnauthorizedError("a frame of the download is not what was sent");
  return opened;
}

function checkSize(grant: Grant, size: number): void {
  if (grant.maxBytes !== undefined && size > grant.maxBytes)
    throw new ValidationError(`the file has more than the ${grant.maxBytes} bytes accepted`);
}

async function* cut(data: Upload, size: number): AsyncGenerator<Uint8Array, void, void> {
  if (data instanceof Blob) {
    for (let at = 0; at < data.size; at += size)
      yield new Uint8Array(await data.slice(at, at + size).arrayBuffer());
    return;
  }
  const pieces = data instanceof Uint8Array ? [data] : data;
  for await (const piece of pieces)
    for (let at = 0; at < piece.length; at += size) yield piece.subarray(at, at + size);
}
