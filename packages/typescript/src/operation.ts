/** Operations: long calls that are watched, signalled and cancelled. */

import { wait } from "./authority.js";
import { utf8 } from "./bytes.js";
import { encode } from "./canonical.js";
import { type Contract, check, controlSubject, parse, type Surface, writePayload } from "./contract.js";
import {
  DeadlineError,
  FabricError,
  readError,
  UnavailableError,
  ValidationError,
} from "./errors.js";
import type { Link } from "./link.js";
import { type Upload, upload } from "./transfer.js";

const SILENCE = 15_000;
const WATCH = 45_000;
const PAUSE = 1000;
const ENDED = new Set(["completed", "failed", "cancelled"]);

/** The state of an operation as callers see it. */
export interface Snapshot<Progress = unknown, Output = unknown> {
  readonly id: string;
  /** Rises with every change that callers see. */
  readonly revision: number;
  readonly state: "pending" | "running" | "completed" | "failed" | "cancelled";
  readonly progress?: Progress;
  readonly output?: Output;
  readonly error?: Readonly<Record<string, unknown>>;
}

type Frame = Readonly<Record<string, unknown>>;

/** An accepted operation. */
export class Run<Progress = unknown, Output = unknown> {
  constructor(
    private readonly link: Link,
    private readonly contract: Contract,
    private readonly declared: Surface,
    readonly id: string,
    /** The right to upload the file that the operation expects, if it does. */
    readonly transfer?: unknown,
  ) {}

  /** Upload the file that the operation expects; returns its description. */
  upload(data: Upload): Promise<Readonly<Record<string, unknown>>> {
    return upload(this.link, this.transfer, data);
  }

  /** The current snapshot. */
  async get(): Promise<Snapshot<Progress, Output>> {
    return this.#snapshot(await this.#ask({ action: "get", operationId: this.id }));
  }

  /** Cancel it, if the contract allows that; an earlier end stays. */
  async cancel(): Promise<Snapshot<Progress, Output>> {
    return this.#snapshot(await this.#ask({ action: "cancel", operationId: this.id }));
  }

  /** Send a signal and return its sequence. */
  async signal(name: string, payload: unknown): Promise<number> {
    check(this.contract, this.declared.signals?.[name]?.input, payload, "the signal");
    const asked = { action: "signal", operationId: this.id, signal: name, input: payload };
    const frame = await this.#ask(asked);
    if (frame.kind !== "signal-accepted" || typeof frame.sequence !== "number") throw strange();
    return frame.sequence;
  }

  /** The current snapshot and all later ones until the end; close changes may come as one. */
  watch(): AsyncGenerator<Snapshot<Progress, Output>, void, void> {
    return this.#follow("watch");
  }

  /** The last snapshot, once it has ended. */
  async wait(): Promise<Snapshot<Progress, Output>> {
    for await (const snapshot of this.#follow("wait"))
      if (ENDED.has(snapshot.state)) return snapshot;
    throw strange();
  }

  /** The output, once there is one; throws the error with which the operation failed. */
  async result(): Promise<Output> {
    const ended = await this.wait();
    if (ended.state === "failed") throw readError(ended.error, this.contract.errors);
    if (ended.state !== "completed") throw new FabricError(`the operation was ${ended.state}`);
    return ended.output as Output;
  }

  /** Asks again whenever the answers end or fall silent, also after a lost connection. */
  async *#follow(action: "wait" | "watch"): AsyncGenerator<Snapshot<Progress, Output>, void, void> {
    const asked = utf8(encode({ action, operationId: this.id }));
    const subject = controlSubject(this.declared.subject);
    let seen = 0;
    for (;;) {
      const until = Date.now() + WATCH;
      const silence = () => Math.min(SILENCE, until - Date.now());
      try {
        for await (const answer of this.link.stream(subject, asked, silence, this.contract.errors)) {
          const frame = this.#frame(answer.data);
          if (frame.kind === "keepalive") continue;
          const snapshot = this.#snapshot(frame);
          if (snapshot.revision > seen) {
            seen = snapshot.revision;
            yield snapshot;
          }
          if (ENDED.has(snapshot.state)) return;
        }
      } catch (error) {
        if (!(error instanceof UnavailableError || error instanceof DeadlineError)) throw error;
        await Promise.race([wait(PAUSE), this.link.ended]);
      }
    }
  }

  async #ask(control: object): Promise<Frame> {
    const subject = controlSubject(this.declared.subject);
    const answer = await this.link.request(subject, utf8(encode(control)));
    return this.#frame(answer.data);
  }

  #frame(data: Uint8Array): Frame {
    const frame = parse(data, "the answer") as Frame;
    if (typeof frame !== "object" || frame === null) throw strange();
    if (frame.kind === "error") throw readError(frame.error, this.contract.errors);
    return frame;
  }

  #snapshot(frame: Frame): Snapshot<Progress, Output> {
    const event = frame.event as { snapshot?: unknown } | undefined;
    const body = (event?.snapshot ?? frame.snapshot) as Snapshot<Progress, Output> | undefined;
    if (typeof body?.revision !== "number" || typeof body.state !== "string") throw strange();
    if (body.progress !== undefined)
      check(this.contract, this.declared.progress, body.progress, "the progress");
    if (body.output !== undefined)
      check(this.contract, this.declared.output, body.output, "the output");
    return body;
  }
}

/** Start an operation of a contract. */
export async function start(
  link: Link,
  contract: Contract,
  declared: Surface,
  payload: unknown,
  within: number,
  key?: string,
): Promise<Run> {
  const data = writePayload(contract, declared.input, payload, "the request");
  const answer = await link.request(declared.subject, data, within, contract.errors, key);
  const frame = parse(answer.data, "the answer") as {
    kind?: unknown;
    ref?: { id?: unknown };
    transfer?: unknown;
  };
  if (frame.kind !== "accepted" || typeof frame.ref?.id !== "string") throw strange();
  return new Run(link, contract, declared, frame.ref.id, frame.transfer);
}

function strange(): ValidationError {
  return new ValidationError("the answer is not an operation frame");
}
