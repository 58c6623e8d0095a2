/** State that a contract declares; whose it is follows from the session. */

import { utf8 } from "./bytes.js";
import { encode } from "./canonical.js";
import { check, type DeclaredState, parse } from "./contract.js";
import { ConflictError, NotFoundError, ValidationError } from "./errors.js";
import type { Link } from "./link.js";

const PAGE = 200;
const TRIES = 20;

/** A stored value. */
export interface Entry<Value> {
  readonly value: Value;
  readonly revision: number;
  readonly updatedAt: number;
  readonly key?: string;
}

/** Converts a value of an older version to the current one. */
export type Migrations = Readonly<Record<string, (value: unknown) => unknown>>;

type Answer = Readonly<Record<string, unknown>>;

class Store<Value> {
  readonly #declared: DeclaredState;

  constructor(
    private readonly link: Link,
    private readonly name: string,
    kind: "map" | "value",
    private readonly migrations: Migrations,
  ) {
    const declared = link.contract.manifest.state?.[name];
    if (!declared) throw new NotFoundError(`${link.contract.id} has no ${name} among its state`);
    if (declared.kind !== kind) throw new ValidationError(`the state ${name} is not a ${kind}`);
    this.#declared = declared;
  }

  async ask(verb: string, key: string | undefined, members: object = {}): Promise<Answer> {
    const asked = utf8(encode({ store: this.name, key, ...members }));
    const answer = await this.link.request(`rpc.v1.State.${verb}`, asked);
    return parse(answer.data, "the answer") as Answer;
  }

  async get(key?: string): Promise<Entry<Value> | undefined> {
    const { entry } = await this.ask("Get", key);
    return entry === null || entry === undefined ? undefined : this.read(entry as Answer);
  }

  async put(key: string | undefined, value: Value, revision?: number): Promise<number> {
    check(this.link.contract, this.#declared.schema, value, "the value");
    const answer = await this.ask("Put", key, { value, expectedRevision: revision });
    if (!answer.applied) throw new ConflictError("it was changed meanwhile");
    return Number(answer.revision);
  }

  async delete(key: string | undefined, revision?: number): Promise<boolean> {
    const answer = await this.ask("Delete", key, { expectedRevision: revision });
    if (!answer.applied && answer.found !== null && answer.found !== undefined)
      throw new ConflictError("it was changed meanwhile");
    return Boolean(answer.applied);
  }

  async change(
    key: string | undefined,
    change: (value: Value | undefined) => Value,
  ): Promise<Value> {
    for (let tries = 0; tries < TRIES; tries++) {
      const found = await this.get(key);
      const value = change(found?.value);
      try {
        await this.put(key, value, found?.revision ?? 0);
        return value;
      } catch (error) {
        if (!(error instanceof ConflictError)) throw error;
      }
    }
    throw new ConflictError("too many concurrent changes");
  }

  read(entry: Answer): Entry<Value> {
    const { revision, updatedAt, key, stateVersion } = entry;
    let { value } = entry;
    if (stateVersion !== (this.#declared.stateVersion ?? "v1")) {
      const migrate = this.migrations[String(stateVersion)];
      if (!migrate)
        throw new ValidationError(`the entry is of version ${stateVersion}, which is not known`);
      value = migrate(value);
    }
    check(this.link.contract, this.#declared.schema, value, "the stored value");
    return {
      value: value as Value,
      revision: Number(revision),
      updatedAt: Number(updatedAt),
      ...(typeof key === "string" ? { key } : {}),
    };
  }
}

/** A state store of one value. */
export class StateValue<Value = unknown> {
  readonly #store: Store<Value>;

  constructor(link: Link, name: string, migrations: Migrations = {}) {
    this.#store = new Store(link, name, "value", migrations);
  }

  /** The stored value, if there is one. */
  get(): Promise<Entry<Value> | undefined> {
    return this.#store.get();
  }

  /** Store a value; a `revision` must be current, 0 for no value, else ConflictError. */
  put(value: Value, revision?: number): Promise<number> {
    return this.#store.put(undefined, value, revision);
  }

  /** Store what `change` makes of the value, again after conflicts. */
  change(change: (value: Value | undefined) => Value): Promise<Value> {
    return this.#store.change(undefined, change);
  }

  /** Delete the value; whether there was one. */
  delete(revision?: number): Promise<boolean> {
    return this.#store.delete(undefined, revision);
  }
}

/** A state store of values by key. */
export class StateMap<Value = unknown> {
  readonly #store: Store<Value>;

  constructor(link: Link, name: string, migrations: Migrations = {}) {
    this.#store = new Store(link, name, "map", migrations);
  }

  /** The value of a key, if it has one. */
  get(key: string): Promise<Entry<Value> | undefined> {
    return this.#store.get(key);
  }

  /** Store a value; a `revision` must be current, 0 for no value, else ConflictError. */
  put(key: string, value: Value, revision?: number): Promise<number> {
    return this.#store.put(key, value, revision);
  }

  /** Store what `change` makes of the value of a key, again after conflicts. */
  change(key: string, change: (value: Value | undefined) => Value): Promise<Value> {
    return this.#store.change(key, change);
  }

  /** Delete a key; whether it had a value. */
  delete(key: string, revision?: number): Promise<boolean> {
    return this.#store.delete(key, revision);
  }

  /** All entries whose keys begin with a prefix, in the order of keys. */
  async *entries(prefix = ""): AsyncGenerator<Entry<Value>, void, void> {
    let after: unknown;
    do {
      const page = await this.#store.ask("List", undefined, { limit: PAGE, prefix, after });
      for (const entry of Array.isArray(page.entries) ? page.entries : [])
        yield this.#store.read(entry as Answer);
      after = typeof page.next === "string" ? page.next : undefined;
    } while (after !== undefined);
  }
}
