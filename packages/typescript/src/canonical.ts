/** Canonical JSON (RFC 8785): the one encoding of a value that is signed and sent. */

const MAX_DEPTH = 128;

/** A value has no canonical form. */
export class CanonicalError extends Error {
  override name = "CanonicalError";
}

/** The canonical text of a JSON value; members that are `undefined` are left out. */
export function encode(value: unknown): string {
  return write(value, 0);
}

function write(value: unknown, depth: number): string {
  if (depth > MAX_DEPTH) throw new CanonicalError("the value is nested too deeply");
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new CanonicalError(`${value} is not JSON`);
    return JSON.stringify(value);
  }
  if (typeof value === "string") {
    if (!value.isWellFormed()) throw new CanonicalError("a text has half a character");
    return JSON.stringify(value);
  }
  if (Array.isArray(value)) return `[${value.map((each) => write(each, depth + 1)).join(",")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value).filter(([, member]) => member !== undefined);
    // Sorting by UTF-16 code units is what the language does by default.
    members.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0));
    const written = members.map(([key, member]) => `${write(key, 0)}:${write(member, depth + 1)}`);
    return `{${written.join(",")}}`;
  }
  throw new CanonicalError(`a ${typeof value} is not JSON`);
}
