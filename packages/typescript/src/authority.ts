/** The way into the network: logins, and the bootstrap at the authority. */

import { encode } from "./canonical.js";
import type { Contract } from "./contract.js";
import { BootstrapError } from "./errors.js";
import {
  connectMessage,
  flowMessage,
  loginMessage,
  type SessionKey,
  seconds,
} from "./proofs.js";

const PAUSES = [200, 500, 1000, 2000, 5000];
const LONGEST_PAUSE = 30_000;
const ASK_MILLISECONDS = 10_000;
const MOST = 4 << 20;

/** What a session needs to connect to NATS. */
export interface Ready {
  readonly urls: readonly string[];
  readonly jwt: string;
  readonly seed: string;
  readonly deployment: string | undefined;
}

/** A login that was begun; the person opens `url`. */
export interface Login {
  readonly id: string;
  readonly url: string;
  readonly expiresAt: string;
}

type Answer = Readonly<Record<string, unknown>>;

/**
 * Begin a login; the page leads back to `redirectTo` with `flowId` added, for `bindLogin`.
 * Throws BootstrapError.
 */
export async function beginLogin(
  authority: string,
  key: SessionKey,
  contract: Contract,
  redirectTo: string,
  context?: unknown,
): Promise<Login> {
  const answer = await askOnce(authority, "/auth/v1/logins", {
    sessionKey: key.id,
    contractDigest: contract.digest,
    manifest: contract.manifest,
    redirectTo,
    context,
    sig: await key.prove(loginMessage(redirectTo, context ?? null)),
  });
  const { loginId, loginUrl, expiresAt } = answer;
  if (typeof loginId !== "string" || typeof loginUrl !== "string") throw strange();
  return { id: loginId, url: loginUrl, expiresAt: String(expiresAt) };
}

/** Bind the session to a login that a person confirmed; throws BootstrapError. */
export async function bindLogin(authority: string, key: SessionKey, flowId: string): Promise<void> {
  await askOnce(authority, `/auth/v1/flows/${encodeURIComponent(flowId)}/bind`, {
    sessionKey: key.id,
    sig: await key.prove(flowMessage(flowId)),
  });
}

/** Ask until admitted, or until `patience` milliseconds are over; throws BootstrapError. */
export async function bootstrap(
  authority: string,
  key: SessionKey,
  contract: Contract,
  patience: number,
  signal: AbortSignal,
): Promise<Ready> {
  const end = Date.now() + patience;
  let withManifest = false;
  for (let attempt = 0; ; ) {
    signal.throwIfAborted();
    const iat = seconds();
    const request = {
      sessionKey: key.id,
      contractDigest: contract.digest,
      textDigest: contract.textDigest,
      iat,
      sig: await key.prove(connectMessage(contract.digest, iat)),
      manifest: withManifest ? contract.manifest : undefined,
    };
    const answer = await ask(authority, "/bootstrap/v1", request, signal);
    signal.throwIfAborted();
    if (answer.status === "ready") return ready(answer);
    if (answer.code === "manifest_required" && !withManifest) {
      withManifest = true;
      continue;
    }
    const wished = typeof answer.retryAfterMs === "number" ? answer.retryAfterMs : undefined;
    const usual = PAUSES[Math.min(attempt++, PAUSES.length - 1)] ?? LONGEST_PAUSE;
    const pause = Math.min(Math.max(wished ?? usual, 50), LONGEST_PAUSE);
    if (answer.status !== "blocked" || Date.now() + pause > end) throw refusal(answer);
    await wait(pause, signal);
  }
}

/** Wait, or throw what the signal says as soon as it is aborted. */
export function wait(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

function ready(answer: Answer): Ready {
  const transports = answer.transports as { websocket?: { urls?: unknown } } | undefined;
  const sentinel = answer.sentinel as { jwt?: unknown; seed?: unknown } | undefined;
  const urls = transports?.websocket?.urls;
  if (typeof sentinel?.jwt !== "string" || typeof sentinel.seed !== "string") throw strange();
  if (!Array.isArray(urls) || !urls.every((url) => typeof url === "string") || !urls.length)
    throw new BootstrapError(
      "no_websocket",
      "the authority names no WebSocket address; set [authority] nats_websocket_port or nats_websocket_urls",
    );
  const deployment = typeof answer.deployment === "string" ? answer.deployment : undefined;
  return { urls, jwt: sentinel.jwt, seed: sentinel.seed, deployment };
}

async function askOnce(authority: string, path: string, request: object): Promise<Answer> {
  const answer = await ask(authority, path, request);
  if (answer.status === "blocked" || answer.status === "refused") throw refusal(answer);
  return answer;
}

/** POST to the authority; every failure is an answer that says `blocked` or `refused`. */
async function ask(
  authority: string,
  path: string,
  request: object,
  stop?: AbortSignal,
): Promise<Answer> {
  const late = AbortSignal.timeout(ASK_MILLISECONDS);
  try {
    const response = await fetch(`${authority.replace(/\/$/, "")}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: encode(request),
      signal: stop ? AbortSignal.any([stop, late]) : late,
      redirect: "error",
      credentials: "omit",
    });
    const answer: unknown = JSON.parse(await readBounded(response));
    if (typeof answer === "object" && answer !== null) return answer as Answer;
    return blocked("its answer is not a JSON object");
  } catch (error) {
    const { message, cause } = error as Error;
    // Node says why in the cause; browsers do not say.
    const why = cause instanceof Error && cause.message ? `: ${cause.message}` : "";
    return blocked(`${authority} cannot be reached (${message}${why})`);
  }
}

async function readBounded(response: Response): Promise<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let read = "";
  for (;;) {
    const part = await reader?.read();
    if (!part || part.done) return read;
    read += part.value;
    if (read.length > MOST) {
      await reader?.cancel();
      throw new Error("its answer is too large");
    }
  }
}

function blocked(message: string): Answer {
  return { status: "blocked", code: "unreachable", message };
}

function refusal(answer: Answer): BootstrapError {
  const code = String(answer.code ?? "refused");
  const mend = typeof answer.mend === "string" ? `; ${answer.mend}` : "";
  const message = `the authority does not admit this session: ${answer.message ?? code}${mend}`;
  return new BootstrapError(code, message, answer);
}

function strange(): BootstrapError {
  return new BootstrapError("bad_answer", "the authority's answer cannot be understood");
}
