/** What the native half tells, to those whom it concerns. */

import { errorOf, type NoLagError, type RawError } from "./errors.js";
import type { Lane } from "./lane.js";
import { isAfterHandler, isReplay, Meta, type RawMessage } from "./meta.js";
import { Mirror } from "./mirror.js";
import type { Platform, Position } from "./native.js";
import { unpackAll } from "./payload.js";
import { isThenable } from "./registry.js";
import { type Owner, type Subscription, Ticket } from "./subscription.js";
import type {
  ActorPresence,
  ConnectionState,
  Filters,
  Gap,
  LobbyPresenceEvent,
  NoLagOptions,
  PresenceData,
  Ready,
  TokenRequest,
} from "./types.js";

/** The broker took a topic away. */
const ACCESS_REVOKED = 42941;
/** After how many messages the native half is told, so that it reads on while the rest is handled. */
const REPORT_EVERY = 256;

type Item = [name: string, ...rest: unknown[]] | RawMessage;
type Handler = (...args: never[]) => unknown;

/** Messages of one topic whose handlers are awaited one after another. */
type Chain = (() => Promise<void>)[];

/** An actor as it came; what was not told is nil. */
export type RawActor = { [K in keyof ActorPresence]: ActorPresence[K] | null };

export abstract class Dispatcher extends Mirror implements Owner {
  protected readonly platform: Platform;
  protected abstract readonly lane: Lane;
  protected readonly readers = new Map<string, Subscription<unknown>[]>();
  /** Disconnects under way: nothing of before is handed over any more. */
  protected muted = 0;
  #items: Item[] = [];
  #at = 0;
  #isRunning = false;
  /** What was awaited goes on first. */
  #isDeferred = false;
  #topic = "";
  /** The last message that was dispatched, and not reported. */
  #dispatched = 0;
  #unreported = 0;
  #well: number[] = [];
  #badly: number[] = [];
  /** Messages that are not handled when they are dispatched. */
  #pending = 0;
  /** The one whose handlers are being called. */
  #current = 0;
  readonly #chains = new Map<string, Chain>();
  #fullReaders = 0;

  constructor(platform: Platform, options: NoLagOptions) {
    super(options);
    this.platform = platform;
  }

  abstract position(topic: string): Position | null;
  abstract changeFilters(topic: string, change: "set" | "add" | "remove", filters: Filters): Promise<void>;
  abstract ack(msgId: string): void;
  abstract readerLeaves(reader: Subscription<unknown>): Promise<void>;
  protected abstract askForToken(number: number, request: Omit<TokenRequest, "signal">): void;
  protected abstract ended(reason: string | null): void;
  protected abstract stateChanged(): void;
  protected abstract failed(error: NoLagError): void;

  hasHandlers(topic: string): boolean {
    return this.messageHandlers.has(topic) || this.anyHandlers.length > 0;
  }

  overflowed(topic: string, dropped: number): void {
    this.fire("overflow", { topic, dropped });
  }

  readerIsFull(isFull: boolean): void {
    this.#fullReaders += isFull ? 1 : -1;
    if (isFull ? this.#fullReaders === 1 : this.#fullReaders === 0) this.lane.tell("full", isFull);
  }

  /** There is something to take. */
  protected readonly wake = (): void => {
    const bytes = this.lane.door?.take();
    if (!bytes) return;
    const items = unpackAll(bytes) as Item[];
    this.#items = this.#at === this.#items.length ? items : [...this.#items.slice(this.#at), ...items];
    this.#at = 0;
    this.#run();
  };

  /** Hands over all that waits, in order; but whoever awaited an answer goes on before what came after it is handed over. */
  #run(): void {
    if (this.#isRunning || this.#isDeferred) return;
    this.#isRunning = true;
    const receivedAt = Date.now();
    let somebodyWaits = false;
    // A handler may make the list longer, by taking more.
    for (let item = this.#items[this.#at]; item !== undefined; item = this.#items[this.#at]) {
      const isAnswer = item[0] === "done";
      if (somebodyWaits && !isAnswer) break;
      this.#at += 1;
      if (isAnswer) somebodyWaits = this.#answered(item as [string, ...unknown[]]) || somebodyWaits;
      else if (typeof item[0] === "number") this.#message(item as RawMessage, receivedAt);
      else this.#event(item as [string, ...unknown[]]);
    }
    this.#isRunning = false;
    this.report();
    if (this.#at < this.#items.length) {
      this.#isDeferred = true;
      this.platform.defer(() => {
        this.#isDeferred = false;
        this.#run();
      });
    } else {
      this.#items = [];
      this.#at = 0;
    }
  }

  #answered([, request, error, reply]: unknown[]): boolean {
    return this.lane.answer(request as number, error ? errorOf(error as RawError) : null, reply);
  }

  /** To the topic's handlers, then to those of any topic, then to iterators (client-api 8.2). */
  #message(raw: RawMessage, receivedAt: number): void {
    const topic = raw[1] ?? this.#topic;
    this.#topic = topic;
    if (this.muted > 0) return; // the session forgets having handed it out
    if (this.replay !== null && isReplay(raw)) this.replay.received += 1;
    const delivery = raw[0];
    const ofTopic = this.messageHandlers.get(topic);
    const ofAny = this.anyHandlers;
    const readers = this.readers.get(topic)?.filter((reader) => reader.wants());
    const hasReaders = readers !== undefined && readers.length > 0;
    if (ofTopic === undefined && ofAny.length === 0 && !hasReaders) {
      // A message that waits for its handlers goes unacknowledged, for another member to handle.
      const isUnhandled = isAfterHandler(raw);
      if (isUnhandled) this.#pending += 1;
      this.#finish(delivery, !isUnhandled, isUnhandled);
      return;
    }
    const data = raw[2];
    const meta = new Meta(raw, topic, receivedAt);
    if (isAfterHandler(raw)) {
      this.#pending += 1;
      const calls = [
        ...(ofTopic ?? []).map((handler) => () => (handler as Handler)(...([data, meta] as never[]))),
        ...ofAny.map((handler) => () => (handler as Handler)(...([topic, data, meta] as never[]))),
      ];
      const feed = (succeeded: boolean) => {
        // An iterator may have been left meanwhile.
        const isHandled = calls.length > 0 || readers?.some((reader) => reader.wants());
        this.#feed(readers ?? [], data, meta, delivery, succeeded && isHandled === true, true);
      };
      this.#chain(topic, () => this.#callInTurn(calls, meta, feed));
      return;
    }
    const failed = (failure: unknown) => this.handlerFailed(failure, topic, meta.msgId);
    this.#current = delivery;
    for (const handler of ofTopic ?? []) this.guard(() => (handler as Handler)(...([data, meta] as never[])), failed);
    for (const handler of ofAny) this.guard(() => (handler as Handler)(...([topic, data, meta] as never[])), failed);
    const wasClosed = this.#current === 0; // by a handler
    this.#current = 0;
    if (wasClosed) return;
    if (hasReaders) {
      this.#pending += 1;
      this.#feed(readers, data, meta, delivery, true, false);
    } else {
      this.#finish(delivery, true, false);
    }
  }

  /** To iterators; without any it is handled. */
  #feed(
    readers: readonly Subscription<unknown>[],
    data: unknown,
    meta: Meta,
    delivery: number,
    succeeded: boolean,
    waits: boolean,
  ): void {
    const wanting = readers.filter((reader) => reader.wants());
    if (wanting.length === 0) {
      this.#finish(delivery, succeeded, true);
      return;
    }
    const ticket = new Ticket(wanting.length, succeeded, waits, (all) => this.#finish(delivery, all, true));
    for (const reader of wanting) reader.push(data, meta, ticket);
  }

  /** Calls handlers one after another, each when the one before it has finished. */
  async #callInTurn(calls: (() => unknown)[], meta: Meta, done: (succeeded: boolean) => void): Promise<void> {
    let succeeded = true;
    for (const call of calls) {
      try {
        const result = call();
        if (isThenable(result)) await result;
      } catch (failure) {
        succeeded = false;
        this.handlerFailed(failure, meta.topic, meta.msgId);
      }
    }
    done(succeeded);
  }

  /** Handles a message now, or when those of its topic before it are handled. */
  #chain(topic: string, handle: () => Promise<void>): void {
    const chain = this.#chains.get(topic);
    if (chain !== undefined) {
      chain.push(handle);
      return;
    }
    const waiting: Chain = [];
    this.#chains.set(topic, waiting);
    const run = async () => {
      for (let next: Chain[number] | undefined = handle; next !== undefined; next = waiting.shift()) await next();
      if (this.#chains.get(topic) === waiting) this.#chains.delete(topic);
    };
    void run();
  }

  /** Begins nothing that waits. */
  protected clearChains(): void {
    for (const chain of this.#chains.values()) chain.length = 0;
    this.#chains.clear();
  }

  /** A message is handled. */
  #finish(delivery: number, succeeded: boolean, wasPending: boolean): void {
    if (wasPending) {
      this.#pending -= 1;
      (succeeded ? this.#well : this.#badly).push(delivery);
      if (!this.#isRunning) queueMicrotask(() => this.report());
    } else if (this.#pending > 0) {
      this.#well.push(delivery); // one before it is not handled yet
    } else {
      this.#dispatched = delivery;
    }
    this.#unreported += 1;
    if (this.#unreported >= REPORT_EVERY) this.report();
  }

  /** Tells the native half what has become of messages before the client is closed: they do not come again, the one that is being handled included. */
  protected reportLast(): void {
    if (this.#current > 0) this.#finish(this.#current, true, false);
    this.#current = 0;
    this.report();
  }

  /** Tells the native half what has become of messages. */
  protected report(): void {
    if (this.#unreported === 0) return;
    this.#unreported = 0;
    if (this.#dispatched > 0) {
      this.lane.tell("upTo", this.#dispatched);
      this.#dispatched = 0;
    }
    if (this.#well.length > 0 || this.#badly.length > 0) {
      this.lane.tell("handled", this.#well, this.#badly);
      this.#well = [];
      this.#badly = [];
    }
    this.lane.flush();
  }

  #event([name, ...rest]: [string, ...unknown[]]): void {
    if (name === "token") {
      const [number, reason, attempt, lastError] = rest as [number, TokenRequest["reason"], number, RawError | null];
      this.askForToken(number, { reason, attempt, lastError: lastError ? errorOf(lastError) : undefined });
      return;
    }
    if (name === "room") {
      if (this.lane.release()) this.fire("drain");
      return;
    }
    if (name === "failed") {
      this.failed(errorOf(rest[0] as RawError));
      return;
    }
    if (this.muted > 0) return;
    const tell = TELLERS[name];
    tell?.call(this, ...(rest as never[]));
  }

  /** @internal */ static readonly tellers = {
    state(this: Dispatcher, from: ConnectionState, to: ConnectionState, reason: string, closeCode: number | null) {
      if (this.options.debug) this.logger.debug(`nolag: ${from} → ${to} (${reason})`);
      this.mirrored = to;
      this.stateChanged();
      if (to === "closed") this.ended(null);
      this.fire("state", { from, to, reason, ...(closeCode !== null && { closeCode }) });
    },
    connecting(this: Dispatcher) {
      this.fire("connecting");
    },
    connected(this: Dispatcher, told: RawIdentity) {
      this.mirrored = "connected";
      this.wasConnected = true;
      this.isRecovering = true;
      this.identity = {
        actorId: told.actorId ?? this.options.actorTokenId ?? null,
        actorType: told.actorType,
        projectId: told.projectId,
      };
      this.version = told.protocolVersion;
      this.granted = told.features;
      this.stateChanged();
      this.fire("connect");
      this.fire("connected");
    },
    disconnected(this: Dispatcher, reason: string) {
      if (this.mirrored === "connected") this.mirrored = "backoff";
      this.isRecovering = false;
      this.replay = null;
      this.stateChanged();
      this.fire("disconnect", reason);
      this.fire("disconnected");
    },
    reconnecting(this: Dispatcher, attempt: number, delayMs: number, reason: string) {
      if (this.options.debug) this.logger.debug(`nolag: attempt ${attempt} in ${Math.round(delayMs)} ms: ${reason}`);
      this.fire("reconnecting", { attempt, delayMs, reason });
    },
    ready(this: Dispatcher, report: Omit<Ready, "refused"> & { refused: { topic: string; error: RawError }[] }) {
      this.isRecovering = false;
      const refused = report.refused.map(({ topic, error }) => ({ topic, error: errorOf(error) }));
      this.fire("ready", { ...report, refused });
    },
    reconnected(this: Dispatcher) {
      this.fire("reconnect");
    },
    error(this: Dispatcher, raw: RawError) {
      const error = errorOf(raw);
      if (error.serverCode === ACCESS_REVOKED && error.topic !== undefined) {
        for (const reader of this.readers.get(error.topic) ?? []) {
          reader.end(error);
          void this.readerLeaves(reader);
        }
      }
      this.fire("error", error);
    },
    clientFailed(this: Dispatcher, raw: RawError) {
      const error = errorOf(raw);
      this.mirrored = "failed";
      this.stateChanged();
      for (const readers of this.readers.values()) for (const reader of readers) reader.end(error);
      this.readers.clear();
      this.fire("failed", error);
    },
    warning(this: Dispatcher, text: string) {
      this.logger.warn(`nolag: ${text}`);
    },
    replayStart(this: Dispatcher, topic: string | null, count: number, oldest: number | null, newest: number | null) {
      this.replay = { count, received: 0 };
      this.fire("replay:start", {
        ...(topic !== null && { topic }),
        count,
        ...(oldest !== null && { oldestTimestamp: oldest }),
        ...(newest !== null && { newestTimestamp: newest }),
      });
    },
    replayEnd(this: Dispatcher, topic: string | null, replayed: number) {
      this.replay = null;
      this.fire("replay:end", { ...(topic !== null && { topic }), replayed });
    },
    hydration(this: Dispatcher, topic: string, _fullTopic: string | null, data: unknown) {
      this.fire("hydration", topic, data);
    },
    gap(this: Dispatcher, gap: Gap) {
      this.fire("gap", gap);
    },
    presence(this: Dispatcher, change: "join" | "update" | "leave" | "waking", raw: RawActor) {
      const actor = actorOf(raw);
      this.note(change, actor);
      this.fire(`presence:${change}`, actor);
    },
    presenceReplaced(this: Dispatcher, app: string | null, room: string) {
      this.fire("presence:replaced", { ...(app !== null && { app }), room });
    },
    lobby(this: Dispatcher, raw: RawLobbyChange) {
      const lobbyId = raw.lobby ?? raw.lobbyId;
      const event: LobbyPresenceEvent = {
        lobbyId,
        roomId: raw.room ?? "",
        actorId: raw.actorId,
        data: raw.data,
        ...(raw.app !== null && { app: raw.app }),
      };
      this.fire(`lobby:${lobbyId}:presence:${raw.change}`, event);
      this.fire(`lobbyPresence:${raw.change}`, event);
    },
    frame(this: Dispatcher, sent: boolean, kind: string, bytes: number) {
      this.logger.debug(`nolag: ${sent ? "→" : "←"} ${kind}, ${bytes} bytes`);
    },
  };
}

const TELLERS: Readonly<Record<string, ((this: Dispatcher, ...args: never[]) => void) | undefined>> =
  Dispatcher.tellers;

interface RawIdentity {
  actorId: string | null;
  actorType: string | null;
  projectId: string | null;
  protocolVersion: number;
  features: string[];
}

interface RawLobbyChange {
  lobby: string | null;
  lobbyId: string;
  room: string | null;
  app: string | null;
  actorId: string;
  change: string;
  data: PresenceData;
}

/** An actor without what was not told. */
export function actorOf(raw: RawActor): ActorPresence {
  const told = Object.fromEntries(Object.entries(raw).filter(([, value]) => value !== null));
  return { presence: {}, ...told } as ActorPresence & typeof told;
}
