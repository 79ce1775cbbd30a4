/** Names built from an app and a room or lobby. */

import type { NoLagClient } from "./client.js";
import { checkName } from "./options.js";
import type { Subscription } from "./subscription.js";
import type {
  AckCallback,
  ActorPresence,
  EmitOptions,
  Filters,
  LobbyPresenceEvent,
  LobbyPresenceHandler,
  LobbyPresenceState,
  MessageHandler,
  PresenceData,
  PublishOptions,
  Receipt,
  SubscribeOptions,
  SubscriptionOptions,
} from "./types.js";

/** An app's rooms and lobbies. */
export class AppContext {
  readonly #client: NoLagClient;
  readonly #app: string;

  /** @internal `client.setApp` makes one. */
  constructor(client: NoLagClient, app: string) {
    this.#client = client;
    this.#app = checkName(app);
  }

  /** A room of this app. */
  setRoom(room: string): RoomContext {
    return new RoomContext(this.#client, this.#app, room);
  }

  /** A lobby of this app. */
  setLobby(lobby: string): LobbyContext {
    return new LobbyContext(this.#client, lobby);
  }
}

/**
 * One room: its topics, and who is there. A broker without the feature `rooms` knows a room by its slug alone: equal slugs of two
 * apps are one room to it.
 */
export class RoomContext {
  /** What the room's topics begin with. */
  readonly prefix: string;
  readonly #client: NoLagClient;
  readonly #app: string;
  readonly #room: string;

  /** @internal `app.setRoom` makes one. */
  constructor(client: NoLagClient, app: string, room: string) {
    this.#client = client;
    this.#app = app;
    this.#room = checkName(room);
    this.prefix = `${app}/${room}`;
  }

  #topic(topic: string): string {
    return `${this.prefix}/${checkName(topic)}`;
  }

  /** Subscribes to one of the room's topics. */
  subscribe(topic: string, callback?: AckCallback): void;
  subscribe(topic: string, options: SubscribeOptions, callback?: AckCallback): void;
  subscribe(topic: string, options?: SubscribeOptions | AckCallback, callback?: AckCallback): void {
    this.#client.subscribe(this.#topic(topic), options as SubscribeOptions, callback);
  }

  /** Unsubscribes from one of the room's topics. */
  unsubscribe(topic: string, callback?: AckCallback): void {
    this.#client.unsubscribe(this.#topic(topic), callback);
  }

  /** Publishes to one of the room's topics. */
  emit(topic: string, data: unknown, callback?: AckCallback): void;
  emit(topic: string, data: unknown, options: EmitOptions, callback?: AckCallback): void;
  emit(topic: string, data: unknown, options?: EmitOptions | AckCallback, callback?: AckCallback): void {
    this.#client.emit(this.#topic(topic), data, options as EmitOptions, callback);
  }

  /** Publishes to one of the room's topics, and tells what became of it. */
  publish(topic: string, data: unknown, options?: PublishOptions): Promise<Receipt> {
    return this.#client.publish(this.#topic(topic), data, options);
  }

  /** Subscribes to one of the room's topics, to iterate over it. */
  subscription<T = unknown>(topic: string, options?: SubscriptionOptions): Subscription<T> {
    return this.#client.subscription(this.#topic(topic), options);
  }

  /** Iterates over the messages of one of the room's topics. */
  messages<T = unknown>(topic: string, options?: SubscriptionOptions): Subscription<T> {
    return this.#client.messages(this.#topic(topic), options);
  }

  /** Handles the messages of one of the room's topics. */
  on(topic: string, handler: MessageHandler): this {
    this.#client.on(this.#topic(topic), handler);
    return this;
  }

  /** The same, for the next message only. */
  once(topic: string, handler: MessageHandler): this {
    this.#client.once(this.#topic(topic), handler);
    return this;
  }

  /** Handles them no more; without a handler, by none. */
  off(topic: string, handler?: MessageHandler): this {
    this.#client.off(this.#topic(topic), handler as never);
    return this;
  }

  setFilters(topic: string, filters: Filters, callback?: AckCallback): void {
    this.#client.setFilters(this.#topic(topic), filters, callback);
  }

  addFilters(topic: string, filters: readonly string[], callback?: AckCallback): void {
    this.#client.addFilters(this.#topic(topic), filters, callback);
  }

  removeFilters(topic: string, filters: readonly string[], callback?: AckCallback): void {
    this.#client.removeFilters(this.#topic(topic), filters, callback);
  }

  /** Announces this client in the room, on every connection from now on. */
  setPresence(data: PresenceData, callback?: AckCallback): void {
    this.#client.announce(this.#app, this.#room, data, callback);
  }

  /** Leaves the room. */
  clearPresence(callback?: AckCallback): void {
    this.#client.announce(this.#app, this.#room, null, callback);
  }

  /** Who is in the room, by actor, as far as is known without asking. */
  getPresence(): Record<string, ActorPresence> {
    return this.#client.roster(this.#app, this.#room);
  }

  /** Asks the broker who is in the room. */
  fetchPresence(): Promise<ActorPresence[]> {
    return this.#client.fetchRoom(this.#app, this.#room);
  }
}

const CHANGES = ["join", "leave", "update", "waking"] as const;

/** What happened in a lobby. */
export interface LobbyUpdate extends LobbyPresenceEvent {
  change: (typeof CHANGES)[number];
}

/** A lobby: who is in its rooms, and who comes and goes. */
export class LobbyContext {
  /** The lobby's slug. */
  readonly lobbyId: string;
  readonly #client: NoLagClient;

  /** @internal `app.setLobby` makes one. */
  constructor(client: NoLagClient, lobby: string) {
    this.#client = client;
    this.lobbyId = checkName(lobby);
  }

  /** Watches the lobby, on every connection from now on, and tells who is in its rooms. */
  async subscribe(callback?: (error: Error | null, state?: LobbyPresenceState) => void): Promise<LobbyPresenceState> {
    try {
      const state = await this.#client.lobby("watchLobby", this.lobbyId);
      callback?.(null, state);
      return state;
    } catch (error) {
      callback?.(error as Error);
      throw error;
    }
  }

  /** Watches it no more. */
  unsubscribe(callback?: AckCallback): void {
    this.#client.unwatchLobby(this.lobbyId, callback);
  }

  /** Asks who is in its rooms. */
  fetchPresence(): Promise<LobbyPresenceState> {
    return this.#client.lobby("fetchLobby", this.lobbyId);
  }

  #event(event: string): string {
    return `lobby:${this.lobbyId}:presence:${event.replace(/^presence:/, "")}`;
  }

  /** Handles `presence:join`, `presence:leave`, `presence:update` or `presence:waking`. */
  on(event: string, handler: LobbyPresenceHandler): this {
    this.#client.on(this.#event(event), handler as never);
    return this;
  }

  /** Handles it no more; without a handler, by none. */
  off(event: string, handler?: LobbyPresenceHandler): this {
    this.#client.off(this.#event(event), handler as never);
    return this;
  }

  /** Iterates over what happens. Of what nobody takes, the newest 1,024 wait. */
  async *events(): AsyncGenerator<LobbyUpdate, void, void> {
    const queue: LobbyUpdate[] = [];
    let wake: (() => void) | undefined;
    const handlers = CHANGES.map((change) => {
      const handler: LobbyPresenceHandler = (event) => {
        if (queue.push({ ...event, change }) > 1_024) queue.shift();
        wake?.();
      };
      this.on(change, handler);
      return [change, handler] as const;
    });
    const ended = () => wake?.();
    this.#client.on("state", ended);
    this.#client.on("disconnected", ended); // closing at once is told by no other event
    try {
      while (true) {
        const next = queue.shift();
        if (next !== undefined) yield next;
        else if (this.#client.state === "closed" || this.#client.state === "failed") return;
        else
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
      }
    } finally {
      for (const [change, handler] of handlers) this.off(change, handler);
      this.#client.off("state", ended);
      this.#client.off("disconnected", ended);
    }
  }
}
