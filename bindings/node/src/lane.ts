/** The way to the native half: commands gathered into one crossing, and the answers to those that are calls. */

import { ClosedError, type NoLagError, QueueError } from "./errors.js";
import type { Door } from "./native.js";
import { pack } from "./payload.js";

/** Takes a call's answer. */
export type Settle = (error: NoLagError | null, reply?: unknown) => void;

/** How many bytes may gather before they cross at once. */
const MAX_BATCH = 64 * 1024;

interface Call {
  bytes: Uint8Array;
  request: number;
}

export class Lane {
  /** Opened by the first `connect`; until then what is said gathers. */
  #door: Door | undefined;
  /** What crosses at the end of this turn. */
  #batch: Uint8Array[] = [];
  #batchBytes = 0;
  #isScheduled = false;
  /** Calls in the batch. */
  #unsent = 0;
  /** Calls that wait until others are complete, in order, because the client's queue would refuse them. */
  #held: Call[] = [];
  /** How many of them have gone. */
  #gone = 0;
  #heldBytes = 0;
  #next = 0;
  readonly #settles = new Map<number, Settle>();
  readonly #maxCalls: number;
  readonly #maxBytes: number;
  readonly #failed: (error: NoLagError) => void;
  /** Whether publishes wait for others; else the client's queue judges them. */
  isPaced = false;

  /** `failed` is told of calls that nobody waits for. */
  constructor(maxCalls: number, maxBytes: number, failed: (error: NoLagError) => void) {
    this.#maxCalls = maxCalls;
    this.#maxBytes = maxBytes;
    this.#failed = failed;
  }

  get door(): Door | undefined {
    return this.#door;
  }

  /** What gathered crosses, and from now on everything does. */
  open(door: Door): void {
    this.#door = door;
    this.flush();
  }

  /** Bytes of calls that have not crossed. */
  get waitingBytes(): number {
    return this.#batchBytes + this.#heldBytes;
  }

  /** Says something that has no answer. */
  tell(verb: string, ...args: unknown[]): void {
    this.#put(pack([verb, ...args]));
  }

  /** Calls; without `settle` only a failure is told, by `failed`. Returns the call's number, 0 where nobody waits. */
  call(verb: string, args: readonly unknown[], settle?: Settle): number {
    const request = this.#number(settle);
    this.#unsent += 1;
    this.#put(pack([verb, request, ...args]));
    return request;
  }

  /** The same, for a call whose place behind those that wait matters. */
  callInOrder(verb: string, args: readonly unknown[], settle?: Settle, topic?: string): number {
    if (this.#held.length === 0 && !this.#isFull()) return this.call(verb, args, settle);
    const request = this.#number(settle);
    const bytes = pack([verb, request, ...args]);
    if (this.#heldBytes + bytes.length > this.#maxBytes) {
      this.#complete(request, new QueueError("queue_full", "queue_full", { retryable: true, ...(topic && { topic }) }));
      return request;
    }
    if (this.#held.length === 0) this.tell("room", Math.ceil(this.#maxCalls / 2));
    this.#held.push({ bytes: bytes.slice(), request });
    this.#heldBytes += bytes.length;
    return request;
  }

  /** Lets waiting calls go, as many as there is room for; whether all are gone that were there. */
  release(): boolean {
    if (this.#held.length === 0) return false;
    const door = this.#door;
    let room = this.isPaced && door !== undefined ? this.#maxCalls - door.openCalls - this.#unsent : this.#held.length;
    for (; room > 0 && this.#gone < this.#held.length; room -= 1) {
      const { bytes } = this.#held[this.#gone] as Call;
      this.#gone += 1;
      this.#heldBytes -= bytes.length;
      this.#unsent += 1;
      this.#put(bytes);
    }
    if (this.#gone === this.#held.length) {
      this.#held = [];
      this.#gone = 0;
      return true;
    }
    this.tell("room", Math.ceil(this.#maxCalls / 2));
    return false;
  }

  /** Withdraws a call. */
  cancel(request: number): void {
    const index = this.#held.findIndex((call) => call.request === request);
    if (index < this.#gone) {
      this.tell("cancel", request);
      return;
    }
    const [call] = this.#held.splice(index, 1) as [Call];
    this.#heldBytes -= call.bytes.length;
    this.#complete(request, new ClosedError("aborted"));
  }

  /** Calls that wait for others fail, because the client is closed. */
  drop(): void {
    const held = this.#held.slice(this.#gone);
    this.#held = [];
    this.#gone = 0;
    this.#heldBytes = 0;
    for (const { request } of held) if (request > 0) this.#complete(request, new ClosedError());
  }

  /** An answer has come. */
  answer(request: number, error: NoLagError | null, reply: unknown): boolean {
    const settle = this.#settles.get(request);
    this.#settles.delete(request);
    settle?.(error, reply);
    return settle !== undefined;
  }

  /** What gathered crosses now. */
  flush(): void {
    this.#isScheduled = false;
    const door = this.#door;
    const batch = this.#batch;
    if (door === undefined || batch.length === 0) return;
    this.#batch = [];
    this.#unsent = 0;
    const bytes = batch.length === 1 ? (batch[0] as Uint8Array) : concat(batch, this.#batchBytes);
    this.#batchBytes = 0;
    door.send(bytes);
  }

  #isFull(): boolean {
    return this.isPaced && this.#door !== undefined && this.#door.openCalls + this.#unsent >= this.#maxCalls;
  }

  #number(settle: Settle | undefined): number {
    if (settle === undefined) return 0;
    this.#next += 1;
    this.#settles.set(this.#next, settle);
    return this.#next;
  }

  #complete(request: number, error: NoLagError): void {
    if (request === 0) this.#failed(error);
    else this.answer(request, error, undefined);
  }

  #put(bytes: Uint8Array): void {
    this.#batch.push(bytes);
    this.#batchBytes += bytes.length;
    if (this.#door === undefined) return;
    if (this.#batchBytes >= MAX_BATCH) {
      this.flush();
    } else if (!this.#isScheduled) {
      this.#isScheduled = true;
      queueMicrotask(() => this.flush());
    }
  }
}

function concat(parts: readonly Uint8Array[], length: number): Uint8Array {
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
