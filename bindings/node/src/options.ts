/** Options as users give them, checked at the call, and as the native half takes them. */

import { ConfigError } from "./errors.js";
import type { Filters, NoLagOptions, SubscribeOptions } from "./types.js";

/** What is wrong with a value, if anything is: what is expected instead. */
type Check = (value: unknown) => string | undefined;

const LONGEST = 315_360_000_000;

const flag: Check = (value) => (typeof value === "boolean" ? undefined : "true or false");
const text: Check = (value) => (typeof value === "string" ? undefined : "text");
const func: Check = (value) => (typeof value === "function" ? undefined : "a function");
const object: Check = (value) => (typeof value === "object" && value !== null ? undefined : "an object");
const time: Check = (value) =>
  typeof value === "number" && value >= 0 && value <= LONGEST ? undefined : "a time in ms from 0 to ten years";
const wait: Check = (value) => (value === 0 ? "a time in ms above 0" : time(value));
const whole =
  (least: number, most = Number.MAX_SAFE_INTEGER): Check =>
  (value) =>
    Number.isInteger(value) && (value as number) >= least && (value as number) <= most
      ? undefined
      : `a whole number ${most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`}`;
const qos: Check = (value) => (value === 0 || value === 1 || value === 2 ? undefined : "0, 1 or 2");
const oneOf =
  (...choices: string[]): Check =>
  (value) =>
    choices.includes(value as string) ? undefined : `one of ${choices.map((choice) => `"${choice}"`).join(", ")}`;
const texts: Check = (value) =>
  Array.isArray(value) && value.every((item) => typeof item === "string") ? undefined : "a list of texts";
const filters: Check = (value) =>
  Array.isArray(value) && value.every((item) => typeof item === "string" || texts(item) === undefined)
    ? undefined
    : "a list of texts, or of lists of texts";
const signal: Check = (value) =>
  typeof Object(value).aborted === "boolean" && typeof Object(value).addEventListener === "function"
    ? undefined
    : "an AbortSignal";
const overflow = oneOf("pause", "dropOldest", "dropNewest");

type Table = { readonly [name: string]: Check | Table };

const BACKOFF: Table = {
  baseMs: wait,
  factor: (value) => (typeof value === "number" && value >= 1 && value <= 1000 ? undefined : "a number from 1 to 1000"),
  maxMs: wait,
  jitter: oneOf("equal"),
};

const CLIENT: Table = {
  url: text,
  reconnect: flag,
  reconnectInterval: wait,
  maxReconnectAttempts: whole(0),
  backoff: BACKOFF,
  initialConnect: oneOf("background", "once", "wait"),
  connectTimeout: wait,
  authTimeout: wait,
  ackTimeout: wait,
  presenceTimeout: wait,
  heartbeatInterval: time,
  heartbeatTimeout: wait,
  disconnectOnHidden: flag,
  qos,
  loadBalance: flag,
  loadBalanceGroup: text,
  ackBatchInterval: time,
  ackMode: oneOf("auto", "afterHandler", "manual"),
  actorTokenId: text,
  projectId: text,
  clientId: text,
  features: texts,
  debug: flag,
  offlineQueue: {
    enabled: flag,
    maxMessages: whole(1),
    maxBytes: whole(1),
    ttlMs: wait,
    overflow: oneOf("reject", "dropOldest", "block"),
    qos0: oneOf("drop", "queue"),
    flushRate: whole(1),
  },
  maxInFlight: whole(1),
  maxMessageSize: whole(1),
  dedupe: { enabled: flag, maxIds: whole(1), windowMs: wait },
  receiveBuffer: { maxMessages: whole(1), overflow },
  tokenProvider: func,
  tokenRefreshMarginMs: time,
  headers: (value) =>
    object(value) === undefined && Object.values(value as object).every((item) => typeof item === "string")
      ? undefined
      : "an object of texts",
  proxy: (value) => (value === false || typeof value === "string" ? undefined : "a URL or false"),
  tls: {
    ca: (value) => (typeof value === "string" || value instanceof Uint8Array ? undefined : "a PEM, as text or bytes"),
  },
  logger: object,
  networkHints: oneOf("auto", "off"),
  lifecycleHints: oneOf("auto", "off"),
};

const position: Check = (value) => {
  const { epoch, seq } = Object(value);
  const is = typeof epoch === "string" && epoch !== "" && epoch.length <= 64 && Number.isSafeInteger(seq) && seq >= 0;
  return is ? undefined : "what a subscription's position was";
};

const SUBSCRIBE: Table = {
  qos,
  loadBalance: flag,
  loadBalanceGroup: text,
  filters,
  history: whole(1, 1000),
  resumeFrom: position,
  redeliver: flag,
  ackTimeoutMs: whole(1000, 3_600_000),
};

const SUBSCRIPTION: Table = { ...SUBSCRIBE, bufferSize: whole(1), overflow, signal };

const EMIT: Table = {
  qos,
  retain: flag,
  retainTtl: whole(1, 31_536_000),
  echo: flag,
  filter: text,
  filters: texts,
  ttlMs: time,
  msgRef: text,
  trace: text,
};

const PUBLISH: Table = { ...EMIT, signal };

const WAIT: Table = { timeoutMs: time, signal };

/** Checks options against a table; those that are `undefined` or null count as absent. */
function check(given: unknown, table: Table, what: string, prefix = ""): void {
  if (typeof given !== "object" || given === null) {
    throw new ConfigError(`${what}: an object is expected, not ${given === null ? "null" : typeof given}`);
  }
  for (const [name, value] of Object.entries(given)) {
    const rule = Object.hasOwn(table, name) ? table[name] : undefined;
    if (rule === undefined) {
      const names = Object.keys(table).join(", ");
      throw new ConfigError(`${what}: there is no option "${prefix}${name}"; there are ${names}`);
    }
    if (value === undefined || value === null) continue;
    if (typeof rule === "function") {
      const expected = rule(value);
      if (expected !== undefined) throw new ConfigError(`${prefix}${name}: ${expected} is expected`);
    } else {
      check(value, rule, what, `${prefix}${name}.`);
    }
  }
}

/** Options of a client, checked. */
export function clientOptions(given: NoLagOptions | undefined): NoLagOptions {
  if (given === undefined || given === null) return {};
  check(given, CLIENT, "options");
  return { ...given };
}

/** Fields that are there: what is undefined, or nil, is left out. */
export function present(fields: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== null));
}

/** All that the native half is told, but for the token. */
export function settings(options: NoLagOptions, url: string): Record<string, unknown> {
  const backoff: NoLagOptions["backoff"] = { ...options.backoff };
  if (options.reconnectInterval != null) {
    backoff.baseMs = options.reconnectInterval;
    backoff.factor ??= 1.5; // as the published client does
  }
  return present({
    url,
    reconnect: options.reconnect,
    maxReconnectAttempts: options.maxReconnectAttempts,
    backoff,
    initialConnect: options.initialConnect ?? "background",
    connectTimeout: options.connectTimeout,
    authTimeout: options.authTimeout,
    ackTimeout: options.ackTimeout,
    presenceTimeout: options.presenceTimeout ?? 5_000,
    heartbeatInterval: options.heartbeatInterval,
    heartbeatTimeout: options.heartbeatTimeout,
    qos: options.qos,
    group: groupOf(options),
    ackBatchInterval: options.ackBatchInterval,
    ackMode: options.ackMode,
    projectId: options.projectId,
    clientId: options.clientId,
    features: options.features,
    debug: options.debug,
    offlineQueue: options.offlineQueue,
    maxInFlight: options.maxInFlight,
    maxMessageSize: options.maxMessageSize,
    dedupe: options.dedupe,
    receiveBuffer: options.receiveBuffer?.maxMessages,
    tokenRefreshMarginMs: options.tokenRefreshMarginMs,
    headers: options.headers,
    proxy: options.proxy,
    ca: options.tls?.ca,
  });
}

function groupOf(options: { loadBalance?: boolean; loadBalanceGroup?: string }): boolean | string | undefined {
  if (options.loadBalance === false) return false;
  if (options.loadBalance) return options.loadBalanceGroup || true;
  return undefined;
}

/** What a subscribe takes. */
export function subscribeOptions(
  given: SubscribeOptions | undefined,
  isIterated = false,
): Record<string, unknown> | null {
  if (given === undefined || given === null) return null;
  check(given, isIterated ? SUBSCRIPTION : SUBSCRIBE, "subscribe");
  const { qos, filters, history, resumeFrom, redeliver, ackTimeoutMs } = given;
  // A group that is named is meant, unless it is said not to be.
  const group = given.loadBalance === undefined && given.loadBalanceGroup ? given.loadBalanceGroup : groupOf(given);
  return present({
    qos,
    group,
    filters,
    history,
    resumeFrom: resumeFrom && { epoch: resumeFrom.epoch, seq: resumeFrom.seq },
    redeliver,
    ackTimeoutMs,
  });
}

/** What a publish takes. */
export function publishOptions(given: object | undefined, isPublish = false): Record<string, unknown> | null {
  if (given === undefined || given === null) return null;
  check(given, isPublish ? PUBLISH : EMIT, isPublish ? "publish" : "emit");
  const { signal: _, ...options } = given as Record<string, unknown>;
  return present(options);
}

/** What a wait takes, checked. */
export function waitOptions<T extends object>(given: T, what: string): T {
  check(given, WAIT, what);
  return given;
}

/** Filters, checked. */
export function filterList(given: Filters, arePlain: boolean): Filters {
  const expected = (arePlain ? texts : filters)(given);
  if (expected !== undefined) throw new ConfigError(`filters: ${expected} is expected`);
  return given;
}

/** A topic is text. What text is a topic the native half knows. */
export function topicName(given: unknown): string {
  if (typeof given !== "string") throw new ConfigError(`topic: text is expected, not ${typeof given}`);
  return given;
}

/** Checks the name of an app, a room, a lobby, or the last level of a topic. */
export function checkName(given: unknown): string {
  const fault =
    typeof given !== "string"
      ? "it is no text"
      : given === ""
        ? "it is empty"
        : new TextEncoder().encode(given).length > 255
          ? "it is longer than 255 bytes"
          : given.includes("\0")
            ? "it contains U+0000"
            : given.includes("/")
              ? "a name contains no `/`"
              : /[+#]/.test(given)
                ? "`+` and `#` are for subscriptions only"
                : undefined;
  if (fault !== undefined) {
    throw new ConfigError(`${JSON.stringify(given)} is no name of an app, room or topic: ${fault}`);
  }
  return given as string;
}
