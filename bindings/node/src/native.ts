/** What the native half offers, in Node and in browsers alike: a client in terms of bytes. */

/** How far an application is with a subscription. Store it, and give it back as `resumeFrom` after a restart. */
export interface Position {
  /** The broker's run of numbers. */
  epoch: string;
  /** The number of the last message. */
  seq: number;
}

/** One client. Commands and items are described in nolag-core's `door`. */
export interface Door {
  /** Carries out commands. */
  send(commands: Uint8Array): void;
  /** All items that are ready; they belong to the caller. */
  take(): Uint8Array | null | undefined;
  position(topic: string): Position | null | undefined;
  /** How many calls are not complete. */
  readonly openCalls: number;
  stats(): Uint8Array | null | undefined;
  /** Lets go of the client. */
  close(): void;
}

export interface Native {
  /** Makes a client of options, or an error of them. `wake` is called when there is something to take, once until it is taken. */
  open(options: Uint8Array, wake: () => void): Door | Uint8Array;
}

/** What differs between Node and browsers. */
export interface Platform {
  /** The native half; a promise where it has to be fetched first. */
  load(options: LoadOptions): Native | Promise<Native>;
  /** A URL from the environment, where there is one. */
  url(): string | undefined;
  /** Runs something when what waits for promises has run. */
  defer(work: () => void): void;
  /** Keeps the process alive until it is told otherwise. */
  keepAlive(): KeepAlive;
  /** Reports what the platform knows of network and sleep, until the returned function is called. */
  watch?(hints: Hints): () => void;
  /** Whether headers, proxies and certificates can be given. */
  readonly reaches: boolean;
}

export interface LoadOptions {
  /** Where the WebAssembly is, or its bytes. */
  wasm?: string | URL | Uint8Array | ArrayBuffer | WebAssembly.Module | undefined;
}

export interface KeepAlive {
  ref(): void;
  unref(): void;
  end(): void;
}

export interface Hints {
  hint(hint: "online" | "offline" | "suspend" | "resume"): void;
  hidden(): void;
  visible(): void;
}
