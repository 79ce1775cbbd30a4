/** The handlers that an application registers, and how they are called. */

import { ConfigError, HandlerError, type NoLagError } from "./errors.js";
import type { AnyHandler, Logger, MessageHandler, NoLagEvents, NoLagEventType } from "./types.js";

type Handler = (...args: never[]) => unknown;

const EVENTS: ReadonlySet<string> = new Set<NoLagEventType>([
  "connecting",
  "connect",
  "connected",
  "disconnect",
  "disconnected",
  "reconnecting",
  "reconnect",
  "ready",
  "error",
  "failed",
  "presence:join",
  "presence:leave",
  "presence:update",
  "presence:waking",
  "presence:replaced",
  "presenceList",
  "hydration",
  "replay:start",
  "replay:end",
  "gap",
  "overflow",
  "drain",
  "state",
]);
/** How the names of lobbies' events begin. */
const LOBBY_EVENT = /^(?:lobby|lobbyPresence|lobbySubscribed|lobbyPresenceList):/;

/** Handlers by event and topic. The lists are replaced, never changed: whoever calls one calls it as it was. */
export class Registry {
  protected readonly logger: Logger;
  protected readonly messageHandlers = new Map<string, readonly Handler[]>();
  protected anyHandlers: readonly Handler[] = [];
  readonly #eventHandlers = new Map<string, readonly Handler[]>();
  readonly #once = new Map<string, Map<Handler, Handler>>();
  protected handlerErrors = 0;

  constructor(logger: Logger | undefined) {
    this.logger = logger ?? console;
  }

  /**
   * Handles an event, or the messages of a topic; `"*"` is every topic. Handlers are called in the order in which they were
   * added, each once however often it was added. What they change counts from the next message on.
   */
  on<E extends NoLagEventType>(event: E, handler: NoLagEvents[E]): this;
  on(event: "*", handler: AnyHandler): this;
  on(event: string, handler: MessageHandler): this;
  on(event: string, handler: Handler): this {
    if (event === "*") return this.onAny(handler as AnyHandler);
    const registry = this.#registryOf(event);
    const handlers = registry.get(event) ?? [];
    if (!handlers.includes(checked(handler))) registry.set(event, [...handlers, handler]);
    return this;
  }

  /** The same, for the next time only. */
  once<E extends NoLagEventType>(event: E, handler: NoLagEvents[E]): this;
  once(event: "*", handler: AnyHandler): this;
  once(event: string, handler: MessageHandler): this;
  once(event: string, handler: Handler): this {
    checked(handler);
    let of = this.#once.get(event);
    if (of === undefined) {
      of = new Map();
      this.#once.set(event, of);
    }
    if (of.has(handler)) return this;
    const first = (...args: never[]) => {
      this.off(event, handler as MessageHandler);
      return handler(...args);
    };
    of.set(handler, first);
    return this.on(event, first as MessageHandler);
  }

  /** Handles it no more; without a handler, by none. */
  off(event: string, handler?: Handler): this {
    const of = this.#once.get(event);
    const registered = (handler && of?.get(handler)) ?? handler;
    if (handler === undefined) this.#once.delete(event);
    else of?.delete(handler);
    if (event === "*") return this.offAny(registered as AnyHandler | undefined);
    const registry = this.#registryOf(event);
    const left = without(registry.get(event), registered);
    if (left.length > 0) registry.set(event, left);
    else registry.delete(event);
    return this;
  }

  /** Handles the messages of every topic. */
  onAny(handler: AnyHandler): this {
    if (!this.anyHandlers.includes(checked(handler as Handler))) {
      this.anyHandlers = [...this.anyHandlers, handler as Handler];
    }
    return this;
  }

  /** Handles them no more; without a handler, by none. */
  offAny(handler?: AnyHandler): this {
    this.anyHandlers = without(this.anyHandlers, handler as Handler | undefined);
    return this;
  }

  #registryOf(event: string): Map<string, readonly Handler[]> {
    if (typeof event !== "string") throw new ConfigError(`on: the name of an event or a topic is expected`);
    return EVENTS.has(event) || LOBBY_EVENT.test(event) ? this.#eventHandlers : this.messageHandlers;
  }

  /** Calls the handlers of an event, as they are now. Errors of theirs are told, not thrown. */
  protected fire(event: string, ...args: unknown[]): void {
    const handlers = this.#eventHandlers.get(event);
    if (handlers === undefined) {
      if (event === "error") this.logger.warn(`nolag: ${String(args[0])}`);
      return;
    }
    for (const handler of handlers) {
      this.guard(
        () => (handler as (...args: unknown[]) => unknown)(...args),
        event === "error" ? undefined : (failure) => this.handlerFailed(failure),
      );
    }
  }

  /** Runs something of the application's; what it throws, or rejects with, goes to `failed`, or to the log. */
  protected guard(work: () => unknown, failed: ((failure: unknown) => void) | undefined): void {
    const fail = failed ?? ((failure) => this.logger.error("nolag: a handler of error events failed", failure));
    try {
      const result = work();
      if (isThenable(result)) result.then(undefined, fail);
    } catch (failure) {
      fail(failure);
    }
  }

  /** Tells of a handler that failed. */
  protected handlerFailed(failure: unknown, topic?: string, msgId?: string): void {
    this.handlerErrors += 1;
    this.fire("error", new HandlerError(failure, topic, msgId) satisfies NoLagError);
  }
}

/** Whether it can be awaited. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === "object" && value !== null && typeof (value as PromiseLike<unknown>).then === "function";
}

function checked(handler: Handler): Handler {
  if (typeof handler !== "function") throw new ConfigError(`on: a function is expected, not ${typeof handler}`);
  return handler;
}

function without(handlers: readonly Handler[] | undefined, handler: Handler | undefined): readonly Handler[] {
  return handler === undefined ? [] : (handlers ?? []).filter((other) => other !== handler);
}
