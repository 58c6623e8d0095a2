/** Connected sessions, and clients of the contracts that they call. */

import { ulid } from "./bytes.js";
import {
  type Contract,
  eventPattern,
  eventSubject,
  readPayload,
  surface,
  writePayload,
} from "./contract.js";
import { FabricError, ValidationError } from "./errors.js";
import { append, isJetStreamAnswer, Link, TIMEOUT } from "./link.js";
import { type Run, start } from "./operation.js";
import type { SessionKey } from "./proofs.js";
import { type Migrations, StateMap, StateValue } from "./state.js";
import { download, type Upload, upload } from "./transfer.js";

const SILENCE = 45_000;

/** How to connect. */
export interface ConnectOptions {
  /** The address of the authority, such as `https://authority.example`. */
  readonly authority: string;
  readonly key: SessionKey;
  /** The app's own contract, which says what it uses. */
  readonly contract: Contract;
  /** Milliseconds to wait while the session is not admitted yet; by default half a minute. */
  readonly patience?: number;
}

/** How to call. */
export interface CallOptions {
  /** Milliseconds to wait for the answer; by default ten seconds. */
  readonly within?: number;
}

/** How to call an RPC or start an operation. */
export interface RequestOptions extends CallOptions {
  /**
   * An idempotency key: the request is done once, however often it is repeated, and the client
   * repeats it while the service is unavailable.
   */
  readonly key?: string;
}

/** A received event. */
export interface Received<Payload> {
  readonly payload: Payload;
  /** Stays the same over all deliveries. */
  readonly id: string;
  /** When it was published, as the publisher wrote it. */
  readonly time: string;
  readonly subject: string;
}

/** Connect a session; throws BootstrapError if the authority does not admit it. */
export async function connect(options: ConnectOptions): Promise<Session> {
  const { authority, key, contract, patience = 30_000 } = options;
  return new Session(await Link.open(authority, key, contract, patience));
}

/** A connected session. */
export class Session {
  constructor(private readonly link: Link) {}

  /** The session key: the public key in base64url. */
  get key(): string {
    return this.link.key.id;
  }

  /** Resolves when the session was closed; rejects if the authority no longer admits it. */
  get ended(): Promise<void> {
    return this.link.ended;
  }

  /** A client for a contract. */
  client(contract: Contract): Client {
    return new Client(this.link, contract);
  }

  /** A state store of the session's own contract that holds one value. */
  stateValue<Value>(name: string, migrations?: Migrations): StateValue<Value> {
    return new StateValue(this.link, name, migrations);
  }

  /** A state store of the session's own contract that holds values by key. */
  stateMap<Value>(name: string, migrations?: Migrations): StateMap<Value> {
    return new StateMap(this.link, name, migrations);
  }

  /** The chunks of a file for which an RPC answered a grant. */
  download(grant: unknown): AsyncGenerator<Uint8Array, void, void> {
    return download(this.link, grant);
  }

  /** Upload a file for a grant; `Run.upload` does it for operations. */
  upload(grant: unknown, data: Upload): Promise<Readonly<Record<string, unknown>>> {
    return upload(this.link, grant, data);
  }

  /** Close the connection. */
  close(): Promise<void> {
    return this.link.close();
  }

  /** Lets `await using` close it. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Calls the surfaces of one contract; generated packages have a method for each. */
export class Client {
  constructor(
    private readonly link: Link,
    readonly contract: Contract,
  ) {}

  /** Call an RPC and return its answer; throws the error that came instead. */
  async call(
    name: string,
    payload: unknown,
    { within = TIMEOUT, key }: RequestOptions = {},
  ): Promise<unknown> {
    const { subject, input, output } = surface(this.contract, "rpc", name);
    const data = writePayload(this.contract, input, payload, "the request");
    const answer = await this.link.request(subject, data, within, this.contract.errors, key);
    return readPayload(this.contract, output, answer.data, "the answer");
  }

  /** Start an operation. */
  start(
    name: string,
    payload: unknown,
    { within = TIMEOUT, key }: RequestOptions = {},
  ): Promise<Run> {
    const declared = surface(this.contract, "operations", name);
    return start(this.link, this.contract, declared, payload, within, key);
  }

  /** Publish an event durably and return its id. */
  async publish(
    name: string,
    payload: unknown,
    { within = TIMEOUT }: CallOptions = {},
  ): Promise<string> {
    const declared = surface(this.contract, "events", name);
    const data = writePayload(this.contract, declared.event, payload, "the event");
    const id = ulid();
    const headers = { "Nats-Msg-Id": id, "Trellis-Event-Time": new Date().toISOString() };
    await append(this.link, eventSubject(declared.subject, payload), data, headers, within);
    return id;
  }

  /** Hear an event from now on; events that break the contract are passed over. */
  async listen(
    name: string,
    where: Readonly<Record<string, string | number>> = {},
  ): Promise<AsyncGenerator<Received<unknown>, void, void>> {
    const declared = surface(this.contract, "events", name);
    const { backlog, end } = await this.link.subscribe(eventPattern(declared.subject, where));
    const { contract } = this;
    async function* events(): AsyncGenerator<Received<unknown>, void, void> {
      try {
        for (;;) {
          const heard = await backlog.get();
          if (!heard || isJetStreamAnswer(heard)) continue;
          let payload: unknown;
          try {
            payload = readPayload(contract, declared.event, heard.data, `the event ${name}`);
          } catch (error) {
            if (error instanceof ValidationError) continue;
            throw error;
          }
          const { headers, subject } = heard;
          const id = headers?.get("Nats-Msg-Id") ?? "";
          yield { payload, id, time: headers?.get("Trellis-Event-Time") ?? "", subject };
        }
      } finally {
        end();
      }
    }
    return events();
  }

  /** Open a feed and return its payloads. */
  async *feed(
    name: string,
    payload: unknown,
    { within = TIMEOUT }: CallOptions = {},
  ): AsyncGenerator<unknown, void, void> {
    const declared = surface(this.contract, "feeds", name);
    const data = writePayload(this.contract, declared.input, payload, "the request");
    let begun = false;
    const silence = () => (begun ? SILENCE : within);
    const frames = this.link.stream(declared.subject, data, silence, this.contract.errors);
    for await (const frame of frames) {
      const status = frame.headers?.get("feed-status");
      if (!begun && status !== "ready")
        throw new FabricError("the feed does not begin with its first frame");
      begun = true;
      if (status === "end") return;
      if (!status)
        yield readPayload(this.contract, declared.event, frame.data, "what the feed sent");
    }
  }
}
