/** The client: its verbs, over what the native half does. */

import { actorOf, Dispatcher, type RawActor } from "./dispatch.js";
import {
  ClosedError,
  ConfigError,
  ConnectionError,
  EncodeError,
  type ErrorDetails,
  errorOf,
  isTold,
  type NoLagError,
  NotConnectedError,
  type RawError,
} from "./errors.js";
import { Lane, type Settle } from "./lane.js";
import type { KeepAlive, Platform, Position } from "./native.js";
import {
  clientOptions,
  filterList,
  present,
  publishOptions,
  settings,
  subscribeOptions,
  topicName,
  waitOptions,
} from "./options.js";
import { encodable, pack, unpack } from "./payload.js";
import { AppContext } from "./rooms.js";
import { Subscription } from "./subscription.js";
import { Tokens, whyNoToken } from "./tokens.js";
import type {
  AckCallback,
  ActorPresence,
  EmitOptions,
  Filters,
  LobbyPresenceState,
  NoLagOptions,
  PresenceData,
  PublishOptions,
  Receipt,
  Stats,
  SubscribeOptions,
  SubscriptionOptions,
  TokenProvider,
  TokenRequest,
} from "./types.js";

const CLIENT_DISCONNECT = "Client disconnect";

/** Stands for a value that was refused, and told. */
const REFUSED = Symbol("refused");

/** Clients that are at work: nobody else may hold on to one whose handlers are all that matters. */
const AT_WORK = new Set<NoLagClient>();

/** One client. It belongs to the realm that made it: a worker makes its own. */
export class NoLagClient extends Dispatcher {
  protected readonly lane: Lane;
  readonly #tokens: Tokens;
  /** Topics that were subscribed without an iterator. */
  readonly #subscribed = new Set<string>();
  #lastRoom: [app: string | null, room: string | null] = [null, null];
  #alive: KeepAlive | undefined;
  #isUnref = false;
  #closing: Promise<void> | undefined;

  /** @internal `NoLag` makes one. */
  constructor(platform: Platform, token: string | TokenProvider, options?: NoLagOptions) {
    super(platform, clientOptions(options));
    this.#tokens = new Tokens(token, this.options.tokenProvider);
    const queue = this.options.offlineQueue;
    const most = [queue?.maxMessages ?? 1_000, queue?.maxBytes ?? 8 << 20] as const;
    this.lane = new Lane(...most, (error) => this.failed(error));
  }

  // Connecting.

  /**
   * Connects, and stays connected from then on. While it is connecting already, this waits for that attempt. `initialConnect` says
   * what becomes of a first attempt that fails: by default this rejects, and the attempts go on where that may help.
   */
  async connect(options: { signal?: AbortSignal } = {}): Promise<void> {
    const { signal } = waitOptions(options, "connect");
    signal?.throwIfAborted();
    const url = this.options.url ?? this.platform.url();
    if (!url) throw new ConfigError('a URL is missing: give NoLag(token, { url: "ws://…" })', "url_required");
    if (this.mirrored === "connected") return;
    if (this.lane.door === undefined) this.#open(url);
    if (this.isOff) {
      this.mirrored = "connecting";
      this.wasConnected = false;
      this.stateChanged();
    }
    await this.#call("connect", [], signal);
  }

  #open(url: string): void {
    const token = this.#tokens.fixed;
    const options = pack({ ...settings(this.options, url), ...(token && { token }) });
    // The native half must not keep a client alive that nobody uses any more.
    const client = new WeakRef(this);
    const door = this.platform.load().open(options, () => client.deref()?.wake());
    if (door instanceof Uint8Array) throw errorOf(unpack(door) as RawError);
    this.lane.open(door);
  }

  /**
   * Closes at once: what was published and not answered fails. Subscriptions, presence and lobby watches are wanted again by a
   * later `connect`.
   */
  disconnect(): void {
    if (this.isOff) return;
    this.lane.drop();
    this.reportLast();
    this.muted += 1;
    this.lane.call("disconnect", [], () => {
      this.muted -= 1;
      if (this.isOff) AT_WORK.delete(this);
    });
    this.lane.flush();
    this.ended(CLIENT_DISCONNECT);
  }

  /** Closes when all that was published has been answered, within `timeoutMs`. */
  close({ flush = true, timeoutMs = 5_000 }: { flush?: boolean; timeoutMs?: number } = {}): Promise<void> {
    if (this.isOff) return this.#closing ?? Promise.resolve();
    this.#closing ??= new Promise<void>((resolve, reject) => {
      const settle: Settle = (error) => {
        this.#closing = undefined;
        if (error) {
          reject(error);
          return;
        }
        if (!this.isOff) this.ended(null);
        resolve();
      };
      this.reportLast();
      this.lane.callInOrder("close", [flush, timeoutMs], settle);
    });
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Waits until the client is connected, whoever connects it. Rejects when the client gives up. */
  async waitForConnected(options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<void> {
    const { timeoutMs, signal } = waitOptions(options, "waitForConnected");
    await new Promise<void>((resolve, reject) => {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const end = (settle: () => void) => {
        clearTimeout(timer);
        this.off("state", look as never);
        this.off("failed", fail as never);
        signal?.removeEventListener("abort", abort);
        settle();
      };
      const fail = (error: NoLagError) => end(() => reject(error));
      const look = () => {
        if (this.mirrored === "connected") end(resolve);
      };
      const abort = () => end(() => reject(signal?.reason));
      if (signal?.aborted) {
        abort();
        return;
      }
      signal?.addEventListener("abort", abort);
      if (timeoutMs !== undefined) {
        const late = () => {
          const message = `not connected after ${timeoutMs} ms`;
          reject(new ConnectionError("connect_timeout", message, { retryable: true }));
        };
        timer = setTimeout(() => end(late), timeoutMs);
      }
      this.on("state", look);
      this.on("failed", fail);
      look();
    });
  }

  /** Makes the next attempt now. A connection that is there has two seconds to prove itself. */
  reconnectNow(): void {
    this.#hint("now");
  }

  /** The application is being put to sleep: attempts wait until `resume`, or for five minutes. */
  suspend(): void {
    this.#hint("suspend");
  }

  /** The application is back: the connection is tried at once. */
  resume(): void {
    this.#hint("resume");
  }

  /** The client keeps a Node process alive while it is connected or tries to be; this is the default. */
  ref(): this {
    this.#isUnref = false;
    this.#alive?.ref();
    return this;
  }

  /** It does not. */
  unref(): this {
    this.#isUnref = true;
    this.#alive?.unref();
    return this;
  }

  /** Uses another token from the next connection on. */
  updateToken(token: string): void {
    this.#tokens.replace(token);
    if (this.lane.door !== undefined) this.lane.call("updateToken", [token]);
  }

  /** What counts, as of a moment ago. */
  stats(): Stats {
    const bytes = this.lane.door?.stats();
    const counted = bytes ? (unpack(bytes) as Stats) : ZEROS;
    return { ...counted, handler_errors: this.handlerErrors };
  }

  /** Bytes of payload that wait to be sent. */
  get bufferedAmount(): number {
    return this.lane.waitingBytes + this.stats().queue_bytes;
  }

  // Publishing.

  /**
   * Publishes. The callback is called once, with `null` when the broker has taken the message (for quality 0, when it is written),
   * or with what went wrong; without one that is an `error` event.
   */
  emit(topic: string, data: unknown, callback?: AckCallback): void;
  emit(topic: string, data: unknown, options: EmitOptions, callback?: AckCallback): void;
  emit(topic: string, data: unknown, options?: EmitOptions | AckCallback, callback?: AckCallback): void {
    const done = typeof options === "function" ? options : callback;
    const given = publishOptions(typeof options === "function" ? undefined : options);
    if (this.isOff || this.mirrored === "closing") {
      this.failed(new NotConnectedError({ topic }), done);
      return;
    }
    const value = this.#encodable(data, { op: "emit", topic }, done);
    if (value === REFUSED) return;
    this.lane.callInOrder("publish", [topicName(topic), value, given], this.#settle(done), topic);
  }

  /**
   * Publishes, and resolves when the broker has taken the message; for quality 0, when it is written. While there is no connection
   * it waits in the queue.
   */
  async publish(topic: string, data: unknown, options?: PublishOptions): Promise<Receipt> {
    const given = publishOptions(options, true);
    if (this.mirrored === "idle") throw new NotConnectedError({ topic });
    if (this.isOff || this.mirrored === "closing") throw new ClosedError("closed", "closed", { topic });
    const value = encodable(data, { op: "publish", topic });
    const receipt = await this.#call("publish", [topicName(topic), value, given], options?.signal);
    return present(receipt as Record<string, unknown>) as unknown as Receipt;
  }

  /** Waits until nothing that was published is unanswered. */
  async flush(options: { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<void> {
    const { timeoutMs, signal } = waitOptions(options, "flush");
    if (this.lane.door !== undefined) await this.#call("flush", [timeoutMs], signal);
  }

  // Subscribing.

  /** Subscribes; the subscription is made again on every connection. The callback gets the broker's answer. */
  subscribe(topic: string, callback?: AckCallback): void;
  subscribe(topic: string, options: SubscribeOptions, callback?: AckCallback): void;
  subscribe(topic: string, options?: SubscribeOptions | AckCallback, callback?: AckCallback): void {
    const done = typeof options === "function" ? options : callback;
    const given = subscribeOptions(typeof options === "function" ? undefined : options);
    topicName(topic);
    if (this.isOff || this.mirrored === "closing") {
      this.failed(new NotConnectedError({ topic }), done);
      return;
    }
    const settle = this.#settle(done);
    this.#subscribed.add(topic);
    this.lane.call("subscribe", [topic, given], settle);
  }

  /** Unsubscribes. Handlers of the topic stay; iterators of it end. */
  unsubscribe(topic: string, callback?: AckCallback): void {
    this.#subscribed.delete(topicName(topic));
    const readers = this.readers.get(topic) ?? [];
    this.readers.delete(topic);
    for (const reader of readers) void reader.unsubscribe();
    this.#ask("unsubscribe", [topic], callback);
  }

  /** Replaces the filters of a topic; none at all means every message. */
  setFilters(topic: string, filters: Filters, callback?: AckCallback): void {
    this.#ask("filters", [topicName(topic), "set", filterList(filters, false)], callback);
  }

  /** Adds filter values to a topic's; those that are lists stay. */
  addFilters(topic: string, filters: readonly string[], callback?: AckCallback): void {
    this.#ask("filters", [topicName(topic), "add", filterList(filters, true)], callback);
  }

  /** Removes filter values from a topic's; those that are lists stay. */
  removeFilters(topic: string, filters: readonly string[], callback?: AckCallback): void {
    this.#ask("filters", [topicName(topic), "remove", filterList(filters, true)], callback);
  }

  /**
   * Subscribes, to iterate over the messages. Before `connect` it is remembered. When `bufferSize` messages wait for the iterator,
   * the client reads no more from the broker until some are taken, or drops some, as `overflow` says; an `overflow` event then
   * tells how many.
   */
  subscription<T = unknown>(topic: string, options: SubscriptionOptions = {}): Subscription<T> {
    const given = subscribeOptions(options, true);
    topicName(topic);
    options.signal?.throwIfAborted();
    if (this.mirrored === "closed" || this.mirrored === "failed" || this.mirrored === "closing")
      throw new ClosedError();
    const buffer = this.options.receiveBuffer;
    const size = options.bufferSize ?? buffer?.maxMessages ?? 1_024;
    const overflow = options.overflow ?? buffer?.overflow ?? "pause";
    const reader = new Subscription<T>(this, topic, size, overflow, options.signal);
    const readers = this.readers.get(topic);
    this.readers.set(topic, [...(readers ?? []), reader as Subscription<unknown>]);
    this.lane.call("subscribe", [topic, given], (error) => {
      reader.settle(error);
      // It needs the topic no more. What a closed client wanted, it wants again.
      if (error !== null && !(error instanceof ClosedError)) void this.readerLeaves(reader as Subscription<unknown>);
    });
    return reader;
  }

  /** Iterates over the messages of a topic, subscribed for as long as that: the same as `subscription`. */
  messages<T = unknown>(topic: string, options?: SubscriptionOptions): Subscription<T> {
    return this.subscription<T>(topic, options);
  }

  /** Acknowledges a message, in manual mode. */
  ack(msgId: string): void {
    this.batchAck([msgId]);
  }

  /** Acknowledges messages, in manual mode. */
  batchAck(msgIds: string[]): void {
    if (!Array.isArray(msgIds) || !msgIds.every((id) => typeof id === "string")) {
      throw new ConfigError("ack: the ids of messages are text");
    }
    if (this.lane.door !== undefined) this.lane.call("ack", [msgIds]);
  }

  /** How far a topic's messages are handled; see `Subscription.position`. */
  position(topic: string): Position | null {
    topicName(topic);
    this.lane.flush();
    return this.lane.door?.position(topic) ?? null;
  }

  // Presence.

  /** Announces this client on every connection from now on. Without a room it is announced to nobody. */
  setPresence(data: PresenceData, callback?: AckCallback): void;
  setPresence(data: PresenceData, roomId: string, callback?: AckCallback): void;
  setPresence(data: PresenceData, room?: string | AckCallback, callback?: AckCallback): void {
    const [roomId, done] = typeof room === "function" ? [null, room] : [room ?? null, callback];
    if (roomId !== null && typeof roomId !== "string") {
      throw new ConfigError(`setPresence: the room is text, not ${typeof roomId}`);
    }
    this.announce(null, roomId, data, done);
  }

  /** Leaves the room that was set last. */
  clearPresence(callback?: AckCallback): void {
    this.announce(...this.#lastRoom, null, callback);
  }

  /** Asks the broker who is in the room that was set last. */
  fetchPresence(): Promise<ActorPresence[]> {
    return this.fetchRoom(...this.#lastRoom);
  }

  /** An app's rooms and lobbies. */
  setApp(app: string): AppContext {
    return new AppContext(this, app);
  }

  // For rooms, lobbies and subscriptions.

  /** @internal */
  announce(app: string | null, room: string | null, data: PresenceData | null, callback?: AckCallback): void {
    if (data === undefined) throw new ConfigError("setPresence: presence is missing; clearPresence takes it back");
    const value = this.#encodable(data, { op: "setPresence", ...(room !== null && { topic: room }) }, callback);
    if (value === REFUSED) return;
    if (data !== null) this.#lastRoom = [app, room];
    const isOff = this.isOff;
    const settle = this.#settle(callback);
    this.lane.call("presence", [app, room, value], (error, reply) => {
      if (error === null && data === null) this.forgetRoster(app ?? undefined, room ?? undefined);
      if (!isOff) settle?.(error, reply);
    });
    if (isOff && callback) this.failed(new NotConnectedError(), callback);
  }

  /** @internal */
  roster(app: string, room: string): Record<string, ActorPresence> {
    return this.rosterOf(app, room);
  }

  /** @internal */
  async fetchRoom(app: string | null, room: string | null): Promise<ActorPresence[]> {
    if (this.mirrored !== "connected") throw new NotConnectedError();
    if (room === null) throw new ConfigError("fetchPresence: no room is named, and none was set");
    const found = (await this.#call("fetchPresence", [app, room])) as RawActor[];
    const actors = found.map(actorOf);
    this.fire("presenceList", actors, room);
    return actors;
  }

  /** @internal */
  async lobby(verb: "watchLobby" | "fetchLobby", lobby: string): Promise<LobbyPresenceState> {
    if (this.mirrored !== "connected") throw new NotConnectedError();
    return (await this.#call(verb, [lobby])) as LobbyPresenceState;
  }

  /** @internal */
  unwatchLobby(lobby: string, callback?: AckCallback): void {
    if (this.lane.door === undefined) callback?.(new NotConnectedError());
    else this.lane.call("unwatchLobby", [lobby], this.#settle(callback));
  }

  /** @internal */
  async changeFilters(topic: string, change: "set" | "add" | "remove", filters: Filters): Promise<void> {
    filterList(filters, change !== "set");
    if (this.lane.door === undefined) throw new NotConnectedError({ topic });
    await this.#call("filters", [topic, change, filters]);
  }

  /** @internal */
  async readerLeaves(reader: Subscription<unknown>): Promise<void> {
    const { topic } = reader;
    const before = this.readers.get(topic);
    if (before === undefined) return;
    const left = before.filter((other) => other !== reader);
    if (left.length > 0) {
      this.readers.set(topic, left);
      return;
    }
    this.readers.delete(topic);
    if (this.#subscribed.has(topic) || this.messageHandlers.has(topic)) return;
    await new Promise<void>((resolve) => {
      // Without an answer the topic is let go all the same.
      this.lane.call("unsubscribe", [topic], () => resolve());
      if (this.lane.door === undefined) resolve();
    });
  }

  /** A value for one of the verbs that never throw for it: what cannot be encoded is told, to the callback and by an event. */
  #encodable(data: unknown, details: ErrorDetails, callback: AckCallback | undefined): unknown {
    try {
      return encodable(data, details);
    } catch (error) {
      if (!(error instanceof EncodeError)) throw error;
      if (callback) this.failed(error, callback);
      this.fire("error", error);
      return REFUSED;
    }
  }

  /** Calls and waits; an abort withdraws the call. */
  #call(verb: string, args: readonly unknown[], signal?: AbortSignal): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const abort = () => this.lane.cancel(request);
      signal?.addEventListener("abort", abort, { once: true });
      const settle: Settle = (error, reply) => {
        signal?.removeEventListener("abort", abort);
        if (verb === "connect" && error?.code === "aborted" && !this.wasConnected && !this.isOff) {
          this.mirrored = "closed"; // nobody else waited for it
          this.stateChanged();
        }
        if (error === null) resolve(reply);
        // What may have happened all the same says so; else the signal's reason tells all there is.
        else if (signal?.aborted && error.code === "aborted" && !error.outcomeUnknown) reject(signal.reason);
        else reject(error);
      };
      const isOrdered = verb === "publish" || verb === "flush";
      const request = isOrdered
        ? this.lane.callInOrder(verb, args, settle, verb === "publish" ? (args[0] as string) : undefined)
        : this.lane.call(verb, args, settle);
    });
  }

  /** One of the calls that never throw for reasons of connection or broker. */
  #ask(verb: string, args: readonly unknown[], callback: AckCallback | undefined): void {
    const isOff = this.isOff || this.mirrored === "closing";
    // What is wanted changes all the same, where that has a meaning.
    this.lane.call(verb, args, isOff ? () => {} : this.#settle(callback));
    if (isOff) this.failed(new NotConnectedError(), callback);
  }

  /** Takes an answer for a callback; without one, nobody waits. */
  #settle(callback: AckCallback | undefined): Settle | undefined {
    if (callback === undefined || callback === null) return undefined;
    if (typeof callback !== "function") throw new ConfigError(`a callback is a function, not ${typeof callback}`);
    return (error) => {
      this.guard(
        () => callback(error),
        (failure) => this.handlerFailed(failure),
      );
    };
  }

  /** A failure reaches the callback, or else is an `error` event, unless the native half tells of it anyway. */
  protected failed(error: NoLagError, callback?: AckCallback): void {
    if (callback !== undefined && callback !== null) {
      this.guard(
        () => callback(error),
        (failure) => this.handlerFailed(failure),
      );
    } else if (!isTold(error) && !(error instanceof ClosedError)) {
      this.fire("error", error);
    }
  }

  #hint(hint: string): void {
    if (this.lane.door !== undefined) this.lane.tell("hint", hint);
  }

  /** The state has changed, and its event is about to be told. */
  protected stateChanged(): void {
    this.lane.isPaced = this.mirrored === "connected";
    if (!this.lane.isPaced) this.lane.release();
    if (this.isOff) {
      this.#alive?.end();
      this.#alive = undefined;
      this.#tokens.abort();
      if (this.muted === 0) AT_WORK.delete(this); // else answers are still to come
    } else {
      AT_WORK.add(this);
      this.#alive ??= this.platform.keepAlive();
      if (this.#isUnref) this.#alive.unref();
    }
  }

  /** Nothing more is handed over, because the application closed the client. */
  protected ended(reason: string | null): void {
    this.mirrored = "closed";
    this.isRecovering = false;
    this.replay = null;
    this.forgetRosters();
    this.clearChains();
    this.stateChanged();
    for (const readers of this.readers.values()) for (const reader of readers) reader.end(null);
    this.readers.clear();
    if (reason !== null) {
      this.fire("disconnect", reason);
      this.fire("disconnected");
    }
  }

  protected askForToken(number: number, request: Omit<TokenRequest, "signal">): void {
    this.#tokens.fetch(request).then(
      ([token, expiresInMs]) => this.lane.tell("token", number, token, expiresInMs),
      (failure) => this.lane.tell("tokenFailed", number, ...whyNoToken(failure)),
    );
  }
}

const ZEROS: Stats = {
  connects: 0,
  connect_failures: 0,
  reconnects: 0,
  downtime_ms: 0,
  frames_in: 0,
  frames_out: 0,
  bytes_in: 0,
  bytes_out: 0,
  published: 0,
  publish_failures: 0,
  publish_latency_ms: null,
  queue_dropped: 0,
  queue_messages: 0,
  queue_bytes: 0,
  queue_oldest_ms: null,
  in_flight: 0,
  received: 0,
  duplicates: 0,
  gaps: 0,
  handler_errors: 0,
  acks_sent: 0,
  ack_backlog: 0,
  decode_errors: 0,
  subscriptions: 0,
  rtt_ms: null,
};
