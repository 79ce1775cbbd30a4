/** A subscription as an asynchronous iterator of its messages. */

import type { NoLagError } from "./errors.js";
import { Delivered } from "./meta.js";
import type { Position } from "./native.js";
import type { Filters, Message, MessageMeta } from "./types.js";

/** Reports a message as handled when all who have it are done with it. */
export class Ticket {
  #left: number;
  #succeeded: boolean;
  readonly #finish: (succeeded: boolean) => void;

  constructor(
    count: number,
    succeeded: boolean,
    /** Whether a reader is done only when it asks for the next message. */
    readonly waits: boolean,
    finish: (succeeded: boolean) => void,
  ) {
    this.#left = count;
    this.#succeeded = succeeded;
    this.#finish = finish;
  }

  /** One is done with it. */
  done(succeeded = true): void {
    this.#succeeded &&= succeeded;
    this.#left -= 1;
    if (this.#left === 0) this.#finish(this.#succeeded);
  }
}

/** What a subscription asks of its client. */
export interface Owner {
  position(topic: string): Position | null;
  changeFilters(topic: string, change: "set" | "add" | "remove", filters: Filters): Promise<void>;
  ack(msgId: string): void;
  /** A reader takes no more messages, or takes them again. */
  readerIsFull(isFull: boolean): void;
  /** A reader is gone: resolves when the topic is unsubscribed, if nobody else needs it. */
  readerLeaves(reader: Subscription<unknown>): Promise<void>;
  overflowed(topic: string, dropped: number): void;
  /** Whether handlers take the topic's messages. */
  hasHandlers(topic: string): boolean;
}

/** Somebody who waits for a message. */
interface Waiting<T> {
  resolve(result: IteratorResult<Message<T>>): void;
  reject(error: unknown): void;
}

/**
 * The messages of a topic, in the order they come.
 *
 * `for await` iterates, and unsubscribes when it is left, if nobody else needs the topic. Iteration ends when the client is
 * closed; it throws when the broker refuses or takes the topic away, or the client gives up. A message counts as handled when it
 * is taken; in the mode `afterHandler`, and in groups with redelivery, when the next one is asked for.
 */
export class Subscription<T = unknown> implements AsyncIterableIterator<Message<T>> {
  /** The topic, as subscribed. */
  readonly topic: string;
  /** Settles with the broker's answer. */
  readonly ready: Promise<void>;

  readonly #owner: Owner;
  readonly #size: number;
  readonly #overflow: "pause" | "dropOldest" | "dropNewest";
  readonly #signal: AbortSignal | undefined;
  readonly #aborted = () => this.abort();
  #settle!: { resolve(): void; reject(error: unknown): void };
  #queue: [Message<T>, Ticket][] = [];
  #waiting: Waiting<T>[] = [];
  #current: Ticket | undefined;
  #answered = false;
  #isIterated = false;
  #isFull = false;
  #dropped = 0;
  #ended = false;
  /** Why it is over; whoever iterates is told once. */
  #failure: { error: unknown; isTold: boolean } | undefined;
  #leaving: Promise<void> | undefined;

  /** @internal `client.subscription` makes one. */
  constructor(
    owner: Owner,
    topic: string,
    size: number,
    overflow: "pause" | "dropOldest" | "dropNewest",
    signal: AbortSignal | undefined,
  ) {
    this.#owner = owner;
    this.topic = topic;
    this.#size = size;
    this.#overflow = overflow;
    this.#signal = signal;
    this.ready = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    this.ready.catch(() => {}); // it need not be awaited
    signal?.addEventListener("abort", this.#aborted, { once: true });
  }

  get state(): "pending" | "active" | "refused" | "closed" {
    if (this.#failure !== undefined) return "refused";
    if (this.#ended) return "closed";
    return this.#answered ? "active" : "pending";
  }

  /**
   * How far the topic's messages are handled, as of a moment ago: give it to `resumeFrom` on the next start. It is exact when
   * `close` has resolved; null for groups, and with a broker that numbers nothing.
   */
  get position(): Position | null {
    return this.#owner.position(this.topic);
  }

  /** Replaces the filters; none at all means every message. */
  setFilters(filters: Filters): Promise<void> {
    return this.#owner.changeFilters(this.topic, "set", filters);
  }

  /** Adds filter values; those that are lists stay. */
  addFilters(filters: readonly string[]): Promise<void> {
    return this.#owner.changeFilters(this.topic, "add", filters);
  }

  /** Removes filter values; those that are lists stay. */
  removeFilters(filters: readonly string[]): Promise<void> {
    return this.#owner.changeFilters(this.topic, "remove", filters);
  }

  /** Ends this subscription; the topic is unsubscribed if nobody else needs it. */
  unsubscribe(): Promise<void> {
    this.#leaving ??= this.#leave();
    return this.#leaving;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<Message<T>>> {
    this.#isIterated = true;
    this.#doneWithCurrent(true);
    const entry = this.#queue.shift();
    if (entry !== undefined) return Promise.resolve({ done: false, value: this.#take(entry) });
    if (this.#dropped > 0) {
      const dropped = this.#dropped; // it has caught up
      this.#dropped = 0;
      this.#owner.overflowed(this.topic, dropped);
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#release();
    });
  }

  async return(): Promise<IteratorResult<Message<T>>> {
    this.#doneWithCurrent(false); // a loop that is left may have been left by an error
    await this.unsubscribe();
    return { done: true, value: undefined };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.unsubscribe();
  }

  /** @internal Whether it wants a message that comes now: not while handlers have them and nobody iterates. */
  wants(): boolean {
    return !this.#ended && this.#failure === undefined && (this.#isIterated || !this.#owner.hasHandlers(this.topic));
  }

  /** @internal A message has come. */
  push(data: unknown, meta: MessageMeta, ticket: Ticket): void {
    const entry: [Message<T>, Ticket] = [
      new Delivered(this.topic, data as T, meta, (msgId) => this.#owner.ack(msgId)),
      ticket,
    ];
    const waiting = this.#waiting.shift();
    if (waiting !== undefined) {
      waiting.resolve({ done: false, value: this.#take(entry) });
      return;
    }
    if (this.#queue.length >= this.#size && this.#overflow !== "pause") {
      this.#dropped += 1;
      if (this.#overflow === "dropNewest") {
        ticket.done();
        return;
      }
      this.#queue.shift()?.[1].done();
    }
    this.#queue.push(entry);
    this.#updateFull();
  }

  /** @internal The broker has answered. */
  settle(error: NoLagError | null): void {
    if (error === null) {
      this.#answered = true;
      this.#settle.resolve();
    } else {
      this.end(error);
    }
  }

  /** @internal There will be no more messages. Without an error the client is closed, and what waits is not handed over either. */
  end(error: NoLagError | null): void {
    if (error === null) {
      this.#ended = true;
      this.#queue = [];
      this.#settle.resolve();
    } else {
      this.#fail(error);
    }
    this.#release();
  }

  /** @internal The application's signal says so. */
  abort(): void {
    this.#fail(this.#signal?.reason);
    void this.unsubscribe();
  }

  #fail(error: unknown): void {
    this.#failure ??= { error, isTold: false };
    this.#settle.reject(error);
  }

  #take([message, ticket]: [Message<T>, Ticket]): Message<T> {
    if (ticket.waits) this.#current = ticket;
    else ticket.done();
    this.#updateFull();
    return message;
  }

  #leave(): Promise<void> {
    this.#doneWithCurrent(true);
    this.#ended = true;
    for (const [, ticket] of this.#queue.splice(0)) ticket.done(!ticket.waits);
    this.#settle.resolve();
    this.#release();
    return this.#owner.readerLeaves(this as Subscription<unknown>);
  }

  /** Lets go on who waits, if it is over. */
  #release(): void {
    if (!this.#ended && this.#failure === undefined) return;
    this.#signal?.removeEventListener("abort", this.#aborted);
    this.#updateFull();
    for (const waiting of this.#waiting.splice(0)) {
      if (this.#failure === undefined || this.#failure.isTold) {
        waiting.resolve({ done: true, value: undefined });
      } else {
        this.#failure.isTold = true;
        waiting.reject(this.#failure.error);
      }
    }
  }

  #updateFull(): void {
    const isFull = this.#overflow === "pause" && this.#queue.length >= this.#size;
    if (isFull !== this.#isFull) {
      this.#isFull = isFull;
      this.#owner.readerIsFull(isFull);
    }
  }

  #doneWithCurrent(succeeded: boolean): void {
    const ticket = this.#current;
    this.#current = undefined;
    ticket?.done(succeeded);
  }
}
