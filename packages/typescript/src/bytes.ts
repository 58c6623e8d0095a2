/** Bytes as texts. */

const ENCODER = new TextEncoder();
const DECODER = new TextDecoder("utf-8", { fatal: true });

/** The UTF-8 bytes of a text. */
export function utf8(text: string): Uint8Array<ArrayBuffer> {
  return ENCODER.encode(text) as Uint8Array<ArrayBuffer>;
}

/** The text of UTF-8 bytes; throws a TypeError for other bytes. */
export function text(bytes: Uint8Array): string {
  return DECODER.decode(bytes);
}

/** Bytes in base64url without padding. */
export function toBase64url(bytes: Uint8Array): string {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The bytes of a text in base64url, with or without padding. */
export function fromBase64url(value: string): Uint8Array<ArrayBuffer> {
  const binary = atob(value.replaceAll("-", "+").replaceAll("_", "/").replaceAll("=", ""));
  return Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
}

/** Random bytes in hexadecimal. */
export function randomHex(count: number): string {
  const bytes = crypto.getRandomValues(new Uint8Array(count));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Parts one after the other. */
export function concat(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

const LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/** A new ULID: sorted by time, and unguessable. */
export function ulid(now: number = Date.now()): string {
  let time = "";
  for (let rest = now, place = 0; place < 10; place++, rest = Math.floor(rest / 32))
    time = LETTERS.charAt(rest % 32) + time;
  const random = crypto.getRandomValues(new Uint8Array(16));
  return time + Array.from(random, (byte) => LETTERS.charAt(byte % 32)).join("");
}
