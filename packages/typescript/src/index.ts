/** The client of Accord services, for Node and browsers. */

export { beginLogin, bindLogin, type Login } from "./authority.js";
export { CanonicalError, encode as canonicalJson } from "./canonical.js";
export {
  type Contract,
  escapeToken,
  eventPattern,
  eventSubject,
  type Manifest,
  wildcard,
} from "./contract.js";
export * from "./errors.js";
export { Run, type Snapshot } from "./operation.js";
export {
  connectMessage,
  connectToken,
  flowMessage,
  inboxPrefix,
  loginMessage,
  requestId,
  requestMessage,
  SessionKey,
} from "./proofs.js";
export {
  type CallOptions,
  Client,
  type ConnectOptions,
  connect,
  type Received,
  type RequestOptions,
  Session,
} from "./session.js";
export { type Entry, type Migrations, StateMap, StateValue } from "./state.js";
export type { Upload } from "./transfer.js";
