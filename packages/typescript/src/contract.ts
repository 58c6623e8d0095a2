/** Contracts, as generated packages hold them: subjects, schemas, payloads. */

import { type Schema, Validator } from "@cfworker/json-schema";
import { text, utf8 } from "./bytes.js";
import { encode } from "./canonical.js";
import { type DeclaredErrors, NotFoundError, ValidationError } from "./errors.js";

/** A contract with its digests, as `accord contract sdk --language typescript` writes it. */
export interface Contract {
  readonly id: string;
  readonly digest: string;
  readonly textDigest: string;
  readonly manifest: Manifest;
  readonly errors?: DeclaredErrors;
}

/** The parts of a manifest that a client reads. */
export interface Manifest {
  readonly id: string;
  readonly schemas?: Readonly<Record<string, unknown>>;
  readonly rpc?: Readonly<Record<string, Surface>>;
  readonly operations?: Readonly<Record<string, Surface>>;
  readonly events?: Readonly<Record<string, Surface>>;
  readonly feeds?: Readonly<Record<string, Surface>>;
  readonly state?: Readonly<Record<string, DeclaredState>>;
}

/** A reference to a schema of the contract. */
export interface Reference {
  readonly schema: string;
}

/** What a contract says of an RPC, operation, event or feed. */
export interface Surface {
  readonly subject: string;
  readonly input?: Reference;
  readonly output?: Reference;
  readonly progress?: Reference;
  readonly event?: Reference;
  readonly signals?: Readonly<Record<string, { readonly input: Reference }>>;
}

/** What a contract says of a state store. */
export interface DeclaredState {
  readonly kind: string;
  readonly schema: Reference;
  readonly stateVersion?: string;
}

/** The sections of a contract that have surfaces. */
export type Section = "rpc" | "operations" | "events" | "feeds";

const VALIDATORS = new WeakMap<object, Validator>();

/** A surface by section and name; throws NotFoundError. */
export function surface(contract: Contract, section: Section, name: string): Surface {
  const among = contract.manifest[section] ?? {};
  const found = Object.hasOwn(among, name) ? among[name] : undefined;
  if (!found)
    throw new NotFoundError(`${contract.id} has no ${JSON.stringify(name)} among its ${section}`);
  return found;
}

/** Throw ValidationError unless a value keeps the schema of a reference. */
export function check(
  contract: Contract,
  reference: Reference | undefined,
  value: unknown,
  what: string,
): void {
  if (!reference) return;
  const schema = contract.manifest.schemas?.[reference.schema];
  if (schema === undefined || schema === true) return;
  if (schema === false) throw new ValidationError(`${what} does not keep the contract`);
  let validator = VALIDATORS.get(schema as object);
  if (!validator) {
    validator = new Validator(schema as Schema, "2019-09", false);
    VALIDATORS.set(schema as object, validator);
  }
  const { valid, errors } = validator.validate(value);
  if (valid) return;
  const issues = errors.map((each) => ({
    path: each.instanceLocation.replace(/^#/, ""),
    message: each.error,
  }));
  throw new ValidationError(`${what} does not keep the contract`, {}, issues);
}

/** The bytes of a payload; throws ValidationError if it breaks its schema. */
export function writePayload(
  contract: Contract,
  reference: Reference | undefined,
  value: unknown,
  what: string,
): Uint8Array {
  let written: string;
  try {
    written = encode(value);
  } catch (error) {
    throw new ValidationError(`${what} is not JSON: ${(error as Error).message}`);
  }
  check(contract, reference, JSON.parse(written), what);
  return utf8(written);
}

/** The payload in bytes; throws ValidationError if they are not JSON or break the schema. */
export function readPayload(
  contract: Contract,
  reference: Reference | undefined,
  data: Uint8Array,
  what: string,
): unknown {
  const value = parse(data, what);
  check(contract, reference, value, what);
  return value;
}

/** JSON in bytes; throws ValidationError. */
export function parse(data: Uint8Array, what: string): unknown {
  try {
    return JSON.parse(text(data));
  } catch {
    throw new ValidationError(`${what} is not JSON`);
  }
}

const TEMPLATE = /\{([^{}]*)\}/g;

/** The subject on which every event of a template is heard. */
export function wildcard(subject: string): string {
  return subject.replaceAll(TEMPLATE, "*");
}

/** The subject of an event, filled in from its payload; throws ValidationError. */
export function eventSubject(subject: string, payload: unknown): string {
  return subject.replaceAll(TEMPLATE, (_, pointer: string) => {
    const found = token(at(payload, pointer));
    if (found === undefined)
      throw new ValidationError(`the subject needs a text or a number at ${pointer}`, {}, [
        { path: pointer, message: "no text and no number" },
      ]);
    return found;
  });
}

/** The subject to listen on, narrowed by values for the pointers of a template. */
export function eventPattern(
  subject: string,
  where: Readonly<Record<string, string | number>> = {},
): string {
  const pointers = Array.from(subject.matchAll(TEMPLATE), (found) => found[1]);
  const unknown = Object.keys(where).find((pointer) => !pointers.includes(pointer));
  if (unknown !== undefined) throw new ValidationError(`the subject has no ${unknown}`);
  return subject.replaceAll(TEMPLATE, (_, pointer: string) => token(where[pointer]) ?? "*");
}

/** The subject on which an operation is controlled. */
export function controlSubject(subject: string): string {
  return `${subject}.control`;
}

const UNSAFE = /[\s.*>~]/;

/** A value as one token of a subject. */
export function escapeToken(value: string): string {
  const safe = Array.from(value, (letter) =>
    UNSAFE.test(letter) || letter === "\0"
      ? `~${letter.charCodeAt(0).toString(16).toUpperCase()}~`
      : letter,
  ).join("");
  return safe === "" || safe.startsWith("$") ? `_${safe}` : safe;
}

function at(payload: unknown, pointer: string): unknown {
  let found = payload;
  for (const step of pointer.split("/").slice(1)) {
    const name = step.replaceAll("~1", "/").replaceAll("~0", "~");
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, name))
      return undefined;
    found = (found as Record<string, unknown>)[name];
  }
  return found;
}

function token(value: unknown): string | undefined {
  if (typeof value === "string") return escapeToken(value);
  return typeof value === "number" ? escapeToken(encode(value)) : undefined;
}
