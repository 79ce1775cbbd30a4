/** Messages as the native half hands them over. */

import type { ActorType, Message, MessageMeta } from "./types.js";

/** `[delivery, topic, data, flags, msgId, from, fromType, filter, timestamp, sourceTopic, seq, trace]`. */
export type RawMessage = [
  delivery: number,
  topic: string | null,
  data: unknown,
  flags: number,
  ...rest: (string | number | null | undefined)[],
];

const REPLAY = 1;
const REQUIRES_ACK = 2;
const RETAINED = 4;
const REDELIVERED = 8;
const AFTER_HANDLER = 16;

/** Whether it counts as handled when its handlers have finished, not when they were called. */
export function isAfterHandler(raw: RawMessage): boolean {
  return (raw[3] & AFTER_HANDLER) !== 0;
}

export function isReplay(raw: RawMessage): boolean {
  return (raw[3] & REPLAY) !== 0;
}

/** What came beside a payload. */
export class Meta implements MessageMeta {
  readonly msgId: string | undefined;
  readonly isReplay: boolean;
  readonly filter: string | undefined;
  readonly from: string | undefined;
  readonly fromType: ActorType | undefined;
  readonly timestamp: number | undefined;
  readonly topic: string;
  readonly requiresAck: boolean;
  readonly retained: boolean;
  readonly redelivered: boolean;
  readonly seq: number | undefined;
  readonly sourceTopic: string | undefined;
  readonly receivedAt: number;
  readonly trace: string | undefined;

  constructor(raw: RawMessage, topic: string, receivedAt: number) {
    const flags = raw[3];
    this.msgId = (raw[4] as string | null) ?? undefined;
    this.isReplay = (flags & REPLAY) !== 0;
    this.filter = (raw[7] as string | null) ?? undefined;
    this.from = (raw[5] as string | null) ?? undefined;
    this.fromType = (raw[6] as string | null) ?? undefined;
    this.timestamp = (raw[8] as number | null) ?? undefined;
    this.topic = topic;
    this.requiresAck = (flags & REQUIRES_ACK) !== 0;
    this.retained = (flags & RETAINED) !== 0;
    this.redelivered = (flags & REDELIVERED) !== 0;
    this.seq = (raw[10] as number | null) ?? undefined;
    this.sourceTopic = (raw[9] as string | null) ?? undefined;
    this.receivedAt = receivedAt;
    this.trace = (raw[11] as string | null) ?? undefined;
  }
}

/** A message for an iterator. */
export class Delivered<T> implements Message<T> {
  readonly #acknowledge: (msgId: string) => void;

  constructor(
    readonly topic: string,
    readonly data: T,
    readonly meta: MessageMeta,
    acknowledge: (msgId: string) => void,
  ) {
    this.#acknowledge = acknowledge;
  }

  ack(): void {
    if (this.meta.msgId !== undefined) this.#acknowledge(this.meta.msgId);
  }
}
