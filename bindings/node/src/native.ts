/** What the native half offers: a client in terms of bytes. */

/** How far an application is with a subscription. Store it, and give it back as `resumeFrom` after a restart. */
export interface Position {
  /** The broker's run of numbers. */
  epoch: string;
  /** The number of the last message. */
  seq: number;
}

/** One client, which disconnects when it is collected. Commands and items are described in nolag-core's `door`. */
export interface Door {
  /** Carries out commands. */
  send(commands: Uint8Array): void;
  /** All items that are ready; they belong to the caller. */
  take(): Uint8Array | null | undefined;
  position(topic: string): Position | null | undefined;
  /** How many calls are not complete. */
  readonly openCalls: number;
  stats(): Uint8Array;
}

export interface Native {
  /** Makes a client of options, or an error of them. `wake` is called when there is something to take, once until it is taken. */
  open(options: Uint8Array, wake: () => void): Door | Uint8Array;
}

/** What the façade needs of where it runs. */
export interface Platform {
  /** The native half. */
  load(): Native;
  /** A URL from the environment, where there is one. */
  url(): string | undefined;
  /** Runs something when what waits for promises has run. */
  defer(work: () => void): void;
  /** Keeps the process alive until it is told otherwise. */
  keepAlive(): KeepAlive;
}

export interface KeepAlive {
  ref(): void;
  unref(): void;
  end(): void;
}
