/** Errors, and their form on the wire: `{id, type, message, context?, traceId?}`. */

/** The members of an error as they came. */
export type ErrorBody = Readonly<Record<string, unknown>>;

/** One thing that is wrong with a payload. */
export interface Issue {
  /** A JSON Pointer. */
  readonly path: string;
  readonly message: string;
}

/** A request was refused, or failed on the way; `type` is what the wire calls it. */
export class FabricError extends Error {
  static readonly type: string = "UnexpectedError";
  readonly type: string;

  constructor(
    message: string,
    /** The error as it came from the other side. */
    readonly body: ErrorBody = {},
    type?: string,
  ) {
    super(message);
    this.type = type ?? (new.target as typeof FabricError).type;
    this.name = new.target.name;
  }

  /** The id in the other side's log, if the error came from there. */
  get id(): string | undefined {
    return typeof this.body.id === "string" ? this.body.id : undefined;
  }
}

/** A payload breaks the contract. */
export class ValidationError extends FabricError {
  static override readonly type = "ValidationError";

  constructor(
    message: string,
    body: ErrorBody = {},
    readonly issues: readonly Issue[] = issuesOf(body),
  ) {
    super(message, body);
  }
}

/** The proof is not valid, or the session may not do this. */
export class UnauthorizedError extends FabricError {
  static override readonly type = "UnauthorizedError";
}

/** What was asked for does not exist. */
export class NotFoundError extends FabricError {
  static override readonly type = "NotFoundError";
}

/** It exists already, or was changed by somebody else in the meantime. */
export class ConflictError extends FabricError {
  static override readonly type = "ConflictError";
}

/** It took longer than allowed. */
export class DeadlineError extends FabricError {
  static override readonly type = "DeadlineError";
}

/** Nobody answers, or there is no connection. */
export class UnavailableError extends FabricError {
  static override readonly type = "UnavailableError";
}

/** The authority does not admit the session; `code` is its reason. */
export class BootstrapError extends FabricError {
  static override readonly type = "BootstrapError";

  constructor(
    readonly code: string,
    message: string,
    body: ErrorBody = {},
  ) {
    super(message, body);
  }
}

/** An error that a contract declares, or whose type is unknown here. */
export class RemoteError<Members = ErrorBody> extends FabricError {
  /** What the error says beside its message. */
  get members(): Members {
    return this.body as Members;
  }
}

/** The classes of the errors that a contract declares, by type. */
export type DeclaredErrors = Readonly<
  Record<string, new (message: string, body: ErrorBody, type: string) => FabricError>
>;

const KNOWN = new Map<string, new (message: string, body: ErrorBody) => FabricError>(
  [
    FabricError,
    ValidationError,
    UnauthorizedError,
    NotFoundError,
    ConflictError,
    DeadlineError,
    UnavailableError,
  ].map((kind) => [kind.type, kind]),
);
const LONGEST = 2000;

/** The error in an answer; whatever cannot be understood gives an error, too. */
export function readError(found: unknown, declared: DeclaredErrors = {}): FabricError {
  if (typeof found !== "object" || found === null || Array.isArray(found))
    return new FabricError("the other side answered with an error that is not a JSON object");
  const body = found as ErrorBody;
  const type = typeof body.type === "string" ? body.type : FabricError.type;
  const message =
    typeof body.message === "string"
      ? body.message.slice(0, LONGEST)
      : `the other side says ${type.slice(0, 80)}`;
  const own = Object.hasOwn(declared, type) ? declared[type] : undefined;
  if (own) return new own(message, body, type);
  const known = KNOWN.get(type);
  return known ? new known(message, body) : new RemoteError(message, body, type);
}

function issuesOf(body: ErrorBody): Issue[] {
  const listed = Array.isArray(body.issues) ? body.issues : [];
  return listed
    .filter((each) => typeof each === "object" && each !== null)
    .map((each) => ({ path: String(each.path ?? ""), message: String(each.message ?? "") }));
}
