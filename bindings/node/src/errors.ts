/** What can go wrong, and what the caller can do about it. */

/** What an error says beside its message. */
export interface ErrorDetails {
  /** Whether the same call may succeed later, unchanged. */
  retryable?: boolean;
  /** Whether the client has given up, and goes on only when asked to connect again. */
  fatal?: boolean;
  /** Whether a publish that failed may have reached the broker. */
  outcomeUnknown?: boolean;
  /** The operation. */
  op?: string;
  /** The topic, room or lobby. */
  topic?: string;
  /** The broker's number. */
  serverCode?: number;
  /** What to do about it, for people. */
  hint?: string;
  /** The circumstances, for people. */
  detail?: string;
  /** The publish's reference. */
  msgRef?: string;
  /** The limit that a payload was over, in bytes. */
  maxSizeBytes?: number;
  /** The HTTP status that the server answered the upgrade with. */
  status?: number;
  /** What brought it. */
  cause?: unknown;
}

/** The base of all errors of this package. */
export class NoLagError extends Error {
  override readonly name: string = "NoLagError";
  /** The stable text that programs tell errors apart by. */
  readonly code: string;
  readonly retryable: boolean;
  readonly fatal: boolean;
  readonly outcomeUnknown: boolean;
  readonly op?: string;
  readonly topic?: string;
  readonly serverCode?: number;
  readonly hint?: string;
  readonly detail?: string;
  readonly msgRef?: string;
  readonly maxSizeBytes?: number;
  readonly status?: number;

  constructor(code: string, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.retryable = details.retryable ?? false;
    this.fatal = details.fatal ?? false;
    this.outcomeUnknown = details.outcomeUnknown ?? false;
    for (const field of FIELDS) {
      const value = details[field];
      if (value !== undefined) Object.assign(this, { [field]: value });
    }
  }
}

const FIELDS = ["op", "topic", "serverCode", "hint", "detail", "msgRef", "maxSizeBytes", "status"] as const;

/** A mistake in the program or its settings: `url_required`, `bad_url`, `bad_option`, `unsupported_runtime`. */
export class ConfigError extends NoLagError {
  override readonly name = "ConfigError";

  constructor(message: string, code = "bad_option", details: ErrorDetails = {}) {
    super(code, message, { fatal: true, ...details });
  }
}

/** The client was never connected, or the message is not to be queued. */
export class NotConnectedError extends NoLagError {
  override readonly name = "NotConnectedError";

  constructor(details: ErrorDetails = {}) {
    super("not_connected", "Not connected", { retryable: true, ...details });
  }
}

/**
 * The transport failed: `dns`, `refused`, `tls`, `handshake_rejected`, `connect_timeout`, `lost`, `heartbeat_timeout`,
 * `protocol_error`. The client tries again by itself unless the error is fatal.
 */
export class ConnectionError extends NoLagError {
  override readonly name = "ConnectionError";
}

/** The broker refused the token or the connection: `access_denied`, `token_expired`, …, or its own text. */
export class AuthError extends NoLagError {
  override readonly name = "AuthError";
}

/** The broker refused one operation; the connection goes on. */
export class ServerError extends NoLagError {
  override readonly name = "ServerError";
}

/** No answer came in time: `ack_timeout`, `presence_timeout`, `lobby_timeout`, `flush_timeout`. */
export class TimeoutError extends NoLagError {
  override readonly name = "TimeoutError";
}

/** The queue of publishes could not keep a message: `queue_full`, `queue_expired`, `too_large`. */
export class QueueError extends NoLagError {
  override readonly name = "QueueError";
}

/** A value cannot be written as MessagePack. */
export class EncodeError extends NoLagError {
  override readonly name = "EncodeError";

  constructor(message: string, details: ErrorDetails = {}) {
    super("encode", message, details);
  }
}

/** The client was closed, or the call withdrawn: `closed`, `reconnect_exhausted`, `aborted`. */
export class ClosedError extends NoLagError {
  override readonly name = "ClosedError";

  constructor(code = "closed", message = code, details: ErrorDetails = {}) {
    super(code, message, details);
  }
}

/** A handler of the application's failed; `cause` is what it threw. */
export class HandlerError extends NoLagError {
  override readonly name = "HandlerError";
  /** The message that it was handling. */
  readonly msgId?: string;

  constructor(cause: unknown, topic?: string, msgId?: string) {
    super("handler", `a handler failed: ${String(cause)}`, { cause, ...(topic !== undefined && { topic }) });
    if (msgId !== undefined) this.msgId = msgId;
  }
}

/** An error as the native half describes it. */
export interface RawError extends ErrorDetails {
  class: string;
  code: string;
  message: string;
  /** The client itself refused, without asking the broker. */
  local?: boolean;
}

/** The broker's own refusals are events of their own already. */
const told = new WeakSet<NoLagError>();

/** The error that the native half describes. */
export function errorOf(raw: RawError): NoLagError {
  const error = make(raw);
  const isRefusal = raw.class === "ServerError" && !raw.local;
  const isLateAnswer = raw.code === "ack_timeout" && !raw.outcomeUnknown;
  if (isRefusal || isLateAnswer) told.add(error);
  return error;
}

/** Whether the native half tells of this error by an `error` event of its own. */
export function isTold(error: NoLagError): boolean {
  return told.has(error);
}

function make(raw: RawError): NoLagError {
  switch (raw.class) {
    case "ConfigError":
      return new ConfigError(raw.message, raw.code, raw);
    case "NotConnectedError":
      return new NotConnectedError(raw);
    case "ConnectionError":
      return new ConnectionError(raw.code, raw.message, raw);
    case "AuthError":
      return new AuthError(raw.code, raw.message, raw);
    case "ServerError":
      return new ServerError(raw.code, raw.message, { ...raw, ...hintOf(raw) });
    case "TimeoutError":
      return new TimeoutError(raw.code, raw.message, raw);
    case "QueueError":
      return new QueueError(raw.code, raw.message, raw);
    case "EncodeError":
      return new EncodeError(raw.message, raw);
    default:
      return new ClosedError(raw.code, raw.message, raw);
  }
}

/** What went wrong in detail stands for a hint where there is none. */
function hintOf(raw: RawError): ErrorDetails {
  const hint = raw.hint ?? raw.detail;
  return hint === undefined ? {} : { hint };
}
