/** A session's connection: signed requests, their answers, and what is heard. */

import {
  type ConnectionOptions,
  headers as emptyHeaders,
  jwtAuthenticator,
  type Msg,
  type NatsConnection,
  PermissionViolationError,
  type Subscription,
  tokenAuthenticator,
  wsconnect,
} from "@nats-io/nats-core";
import { bootstrap, type Ready, wait } from "./authority.js";
import { randomHex, text, ulid, utf8 } from "./bytes.js";
import { type Contract, parse } from "./contract.js";
import {
  BootstrapError,
  DeadlineError,
  type DeclaredErrors,
  FabricError,
  readError,
  UnauthorizedError,
  UnavailableError,
} from "./errors.js";
import {
  connectToken,
  inboxPrefix,
  requestId,
  requestMessage,
  type SessionKey,
  seconds,
} from "./proofs.js";

/** Milliseconds to wait for an answer. */
export const TIMEOUT = 10_000;

const MAX_BACKLOG = 4096;
const MAX_BACKLOG_BYTES = 64 << 20;
const ATTEMPT = 5000;
const RETRY = 1000;
const PING = 20_000;
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 1000;
const EMPTY = new Uint8Array();
const ANSWERS = ['{"type":"io.nats.jetstream.', '{"stream":"', '{"error":{"code":'].map(utf8);

/** Messages that were not read yet; a reader that is too slow gets an error, not a gap. */
export class Backlog {
  #messages: Msg[] = [];
  #bytes = 0;
  #failure: FabricError | undefined;
  #wake: (() => void) | undefined;

  constructor(private readonly where: string) {}

  /** Keep a message; whether there was room. */
  put(message: Msg): boolean {
    if (this.#messages.length >= MAX_BACKLOG || this.#bytes > MAX_BACKLOG_BYTES)
      this.fail(new UnavailableError(`the reader of ${this.where} fell too far behind`));
    if (this.#failure) return false;
    this.#bytes += message.data.length;
    this.#messages.push(message);
    this.#wake?.();
    return true;
  }

  /** Let readers have what is kept, and then the first error. */
  fail(error: FabricError): void {
    this.#failure ??= error;
    this.#wake?.();
  }

  /** The error, if it came before any message. */
  get failure(): FabricError | undefined {
    return this.#messages.length ? undefined : this.#failure;
  }

  /** The next message, or undefined if none came in so many milliseconds. */
  async get(within?: number): Promise<Msg | undefined> {
    const end = within === undefined ? undefined : Date.now() + within;
    for (;;) {
      const message = this.#messages.shift();
      if (message) {
        this.#bytes -= message.data.length;
        return message;
      }
      if (this.#failure) throw this.#failure;
      const left = end === undefined ? undefined : end - Date.now();
      if (left !== undefined && left <= 0) return undefined;
      await new Promise<void>((resolve) => {
        const timer = left === undefined ? undefined : setTimeout(resolve, left);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#wake = undefined;
    }
  }
}

type Socket = WebSocket | NoSocket;

/** Stands for a socket that could not be opened, and fails as one that could not connect. */
class NoSocket {
  binaryType = "arraybuffer";
  readonly bufferedAmount = 0;
  onopen: unknown = null;
  onmessage: unknown = null;
  onclose: unknown = null;
  onerror: ((event: { readonly message: string }) => void) | null = null;

  constructor(message: string) {
    setTimeout(() => this.onerror?.({ message }), 0);
  }

  send(): void {}

  close(): void {}
}

interface Waiting {
  readonly subject: string;
  heard(message: Msg): void;
  failed(error: FabricError): void;
}

/** A connection with an identity. It reconnects until it is closed or no longer admitted. */
export class Link {
  #nats!: NatsConnection;
  #ready!: Ready;
  #opening: Promise<unknown> | undefined;
  /** While the connection is away: resolves when it is back, or the session is over. */
  #away: Promise<void> | undefined;
  #back: () => void = () => {};
  #token = "";
  #stale = false;
  #closed = false;
  readonly #stop = new AbortController();
  readonly #stem: string;
  readonly #waiting = new Map<string, Waiting>();
  readonly #listening = new Set<{ subject: string; backlog: Backlog }>();
  readonly #ended: Promise<void>;
  #finish!: (error?: FabricError) => void;

  private constructor(
    private readonly authority: string,
    readonly key: SessionKey,
    readonly contract: Contract,
  ) {
    this.#stem = `${inboxPrefix(key.id)}.${randomHex(8)}.`;
    this.#ended = new Promise((resolve, reject) => {
      this.#finish = (error) => (error ? reject(error) : resolve());
    });
    this.#ended.catch(() => {}); // who wants to know asks `ended`
  }

  /** Connect; throws BootstrapError, or UnavailableError if NATS cannot be reached in time. */
  static async open(
    authority: string,
    key: SessionKey,
    contract: Contract,
    patience: number,
  ): Promise<Link> {
    const link = new Link(authority, key, contract);
    const end = Date.now() + patience;
    for (;;) {
      const left = Math.max(0, end - Date.now());
      link.#ready = await bootstrap(authority, key, contract, left, link.#stop.signal);
      try {
        await link.#connect();
        return link;
      } catch (error) {
        if (Date.now() + RETRY > end)
          throw new UnavailableError(`this session cannot connect to NATS (${message(error)})`);
        await wait(RETRY);
      }
    }
  }

  /** The deployment of the session, if it is an instance of one. */
  get deployment(): string | undefined {
    return this.#ready.deployment;
  }

  /** Resolves when the session was closed; rejects if the authority no longer admits it. */
  get ended(): Promise<void> {
    return this.#ended;
  }

  /** Close the connection. */
  async close(): Promise<void> {
    this.#end();
    await this.#shut();
  }

  /**
   * Send a signed request and return its answer; throws the error that came instead.
   *
   * With an idempotency key it is repeated while the service is unavailable.
   */
  async request(
    subject: string,
    data: Uint8Array,
    within = TIMEOUT,
    declared?: DeclaredErrors,
    key?: string,
  ): Promise<Msg> {
    const end = Date.now() + within;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
      const identity = requestId(ulid(), key);
      try {
        await this.#reached(Math.max(end - Date.now(), FIRST_PAUSE));
        const signed = await this.signed(subject, data, identity);
        const left = Math.max(end - Date.now(), FIRST_PAUSE);
        const answer = await this.ask(subject, data, signed, left);
        raiseError(answer, declared);
        return answer;
      } catch (error) {
        const again = key !== undefined && error instanceof UnavailableError && !this.#closed;
        if (!again || Date.now() + pause >= end) throw error;
        await Promise.race([wait(pause), this.#ended]);
      }
    }
  }

  /** The headers that sign a request. */
  async signed(
    subject: string,
    data: Uint8Array,
    id: string = ulid(),
  ): Promise<Record<string, string>> {
    const iat = seconds();
    const proof = await this.key.prove(requestMessage(this.key.id, subject, data, iat, id));
    return {
      "session-key": this.key.id,
      proof,
      iat: String(iat),
      "request-id": id,
      traceparent: `00-${randomHex(16)}-${randomHex(8)}-01`,
    };
  }

  /** Send a request and return its answer. */
  async ask(
    subject: string,
    data: Uint8Array,
    headers: Record<string, string>,
    within: number,
  ): Promise<Msg> {
    await this.#reached(within);
    const reply = this.#stem + randomHex(8);
    return await new Promise<Msg>((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new DeadlineError(`no answer came from ${subject} within ${within} ms`)),
        within,
      );
      const done = () => {
        clearTimeout(timer);
        this.#waiting.delete(reply);
      };
      this.#waiting.set(reply, {
        subject,
        heard: (answer) => {
          done();
          isUnheard(answer) ? reject(nobody(subject)) : resolve(answer);
        },
        failed: (error) => {
          done();
          reject(error);
        },
      });
      try {
        this.#publish(subject, data, headers, reply);
      } catch (error) {
        done();
        reject(error);
      }
    });
  }

  /** Send a signed request; `read` gets every frame of the answer until it returns. */
  async *stream(
    subject: string,
    data: Uint8Array,
    silence: () => number,
    declared?: DeclaredErrors,
  ): AsyncGenerator<Msg, void, void> {
    await this.#reached(silence());
    const headers = await this.signed(subject, data);
    const reply = this.#stem + randomHex(8);
    const backlog = new Backlog(subject);
    this.#waiting.set(reply, {
      subject,
      heard: (frame) => {
        if (!backlog.put(frame)) this.#waiting.delete(reply);
      },
      failed: (error) => {
        this.#waiting.delete(reply);
        backlog.fail(error);
      },
    });
    try {
      this.#publish(subject, data, headers, reply);
      for (;;) {
        const frame = await backlog.get(silence());
        if (!frame) throw new DeadlineError(`nothing more came from ${subject}`);
        if (isUnheard(frame)) throw nobody(subject);
        raiseError(frame, declared);
        yield frame;
      }
    } finally {
      this.#waiting.delete(reply);
    }
  }

  /** Hear what is published on a subject, also after the connection was lost and came back. */
  async subscribe(subject: string): Promise<{ backlog: Backlog; end(): void }> {
    const backlog = new Backlog(subject);
    const entry = { subject, backlog };
    this.#listening.add(entry);
    let subscription: Subscription | undefined;
    const end = () => {
      this.#listening.delete(entry);
      if (!this.#nats.isClosed()) subscription?.unsubscribe();
    };
    try {
      subscription = this.#nats.subscribe(subject, {
        callback: (error, heard) => {
          if (error) backlog.fail(forbidden(subject, "subscribe"));
          else backlog.put(heard);
        },
      });
      await this.#nats.flush();
    } catch (error) {
      end();
      throw unusable(error);
    }
    if (backlog.failure) {
      end();
      throw backlog.failure;
    }
    return { backlog, end };
  }

  /** Wait until the connection is there: what is sent while it is away is lost. */
  async #reached(within: number): Promise<void> {
    if (!this.#away) return;
    const timer = new AbortController();
    const late = wait(within, timer.signal).then(() => {
      throw new UnavailableError(`the connection did not come back within ${within} ms`);
    });
    try {
      await Promise.race([this.#away, late]);
    } finally {
      timer.abort();
    }
  }

  #publish(subject: string, data: Uint8Array, given: Record<string, string>, reply: string): void {
    const headers = emptyHeaders();
    for (const [name, value] of Object.entries(given)) headers.set(name, value);
    try {
      this.#nats.publish(subject, data, { headers, reply });
    } catch (error) {
      throw unusable(error);
    }
  }

  async #connect(): Promise<void> {
    const options: ConnectionOptions & { wsFactory: unknown } = {
      servers: [...this.#ready.urls],
      name: this.contract.id,
      // A token is signed before each attempt, since signing takes a moment.
      authenticator: [
        (nonce) => jwtAuthenticator(this.#ready.jwt, utf8(this.#ready.seed))(nonce),
        tokenAuthenticator(() => this.#token),
      ],
      wsFactory: (url: string) => this.#socket(url),
      inboxPrefix: inboxPrefix(this.key.id),
      ignoreAuthErrorAbort: true,
      maxReconnectAttempts: -1,
      reconnectTimeWait: RETRY,
      reconnectJitter: RETRY / 4,
      pingInterval: PING,
      timeout: ATTEMPT,
    };
    // The first attempt fails instead of being repeated.
    const nats = await wsconnect(options as ConnectionOptions);
    this.#nats = nats;
    nats.subscribe(`${this.#stem}*`, {
      callback: (error, heard) => {
        if (!error) this.#waiting.get(heard.subject)?.heard(heard);
      },
    });
    await nats.flush();
    void this.#follow(nats);
  }

  /** Open a socket for nats-core, which waits for ever if this fails. */
  #socket(url: string): Promise<{ socket: Socket; encrypted: boolean }> {
    const opening = this.#open(url).catch((error: unknown) => new NoSocket(message(error)));
    this.#opening = opening;
    return opening.then((socket) => ({ socket, encrypted: url.startsWith("wss:") }));
  }

  async #open(url: string): Promise<WebSocket> {
    if (this.#stale) await this.#renew();
    this.#token = await connectToken(this.key, this.contract.digest, seconds());
    return new WebSocket(url);
  }

  /** Close the connection; nats-core cannot while it waits for a socket. */
  async #shut(): Promise<void> {
    await this.#opening;
    await wait(0);
    await this.#nats.close();
  }

  /** Repeat the bootstrap once the server no longer accepted the session. */
  async #renew(): Promise<void> {
    try {
      const stop = this.#stop.signal;
      this.#ready = await bootstrap(this.authority, this.key, this.contract, 0, stop);
      this.#stale = false;
    } catch (error) {
      if (error instanceof BootstrapError && error.body.status !== "blocked") {
        this.#end(error);
        void this.#shut();
      }
      throw error;
    }
  }

  async #follow(nats: NatsConnection): Promise<void> {
    void nats.closed().then((error) => this.#end(error ? unusable(error) : undefined));
    for await (const status of nats.status()) {
      if (status.type === "disconnect") {
        this.#stale = true;
        this.#away ??= new Promise((resolve) => {
          this.#back = resolve;
        });
        for (const waiting of [...this.#waiting.values()])
          waiting.failed(
            new UnavailableError(
              `the connection was lost, so it is not known whether ${waiting.subject} was done`,
            ),
          );
      } else if (status.type === "reconnect") {
        this.#back();
        this.#away = undefined;
      } else if (status.type === "error") this.#denied(status.error);
    }
  }

  #denied(error: Error): void {
    if (!(error instanceof PermissionViolationError)) return;
    const subject = error.subject.toLowerCase();
    if (error.operation === "publish") {
      for (const waiting of [...this.#waiting.values()])
        if (waiting.subject.toLowerCase() === subject)
          waiting.failed(forbidden(waiting.subject, "publish"));
    } else {
      for (const entry of this.#listening)
        if (entry.subject.toLowerCase() === subject)
          entry.backlog.fail(forbidden(entry.subject, "subscribe"));
    }
  }

  #end(error?: FabricError): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#stop.abort(new UnavailableError("the session was closed"));
    const why = error ?? new UnavailableError("the session was closed");
    for (const waiting of [...this.#waiting.values()]) waiting.failed(why);
    for (const entry of this.#listening) entry.backlog.fail(why);
    this.#back();
    this.#away = undefined;
    this.#finish(error);
  }
}

/** Throw the error that an answer carries, if it does. */
export function raiseError(answer: Msg, declared?: DeclaredErrors): void {
  if (answer.headers?.get("status") === "error")
    throw readError(parseQuietly(answer.data), declared);
}

/** Whether a message is an answer of JetStream, and no publication. */
export function isJetStreamAnswer(message: Msg): boolean {
  const { headers, data } = message;
  if (message.reply?.startsWith("$JS.")) return true;
  if (headers && headers.keys().length > 0)
    return headers.code !== 0 || headers.has("Nats-Stream") || headers.has("Status");
  return !data.length || ANSWERS.some((start) => startsWith(data, start));
}

/** Publish to the stream of a subject; repeated under the same id while nobody answers. */
export async function append(
  link: Link,
  subject: string,
  data: Uint8Array,
  headers: Record<string, string>,
  within: number,
): Promise<void> {
  const end = Date.now() + within;
  for (let pause = 50; ; pause = Math.min(pause * 2, 800)) {
    try {
      const answer = await link.ask(subject, data, headers, 5000);
      const stored = parse(answer.data, "the answer") as { seq?: unknown; error?: unknown };
      if (stored.error !== undefined)
        throw new FabricError(`the event was not stored: ${JSON.stringify(stored.error)}`);
      if (typeof stored.seq !== "number")
        throw new UnavailableError(`no stream takes what is published on ${subject}`);
      return;
    } catch (error) {
      const again = error instanceof UnavailableError || error instanceof DeadlineError;
      if (!again || Date.now() + pause >= end) throw error;
      await wait(pause);
    }
  }
}

function isUnheard(answer: Msg): boolean {
  return answer.data.length === 0 && answer.headers?.code === 503;
}

function startsWith(data: Uint8Array, start: Uint8Array): boolean {
  return start.every((byte, at) => data[at] === byte);
}

function parseQuietly(data: Uint8Array): unknown {
  try {
    return JSON.parse(text(data));
  } catch {
    return undefined;
  }
}

function nobody(subject: string): UnavailableError {
  return new UnavailableError(`nobody answers on ${subject} at the moment`);
}

function forbidden(subject: string, verb: string): UnauthorizedError {
  return new UnauthorizedError(
    `this session may not ${verb} ${subject}; declare the use in the contract, and have it accepted`,
  );
}

function unusable(error: unknown): UnavailableError {
  return new UnavailableError(`the connection cannot be used: ${message(error)}`);
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export { EMPTY };
