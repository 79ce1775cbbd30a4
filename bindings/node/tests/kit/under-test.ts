/** What a specification suite needs of where it runs; it imports nothing that only Node has. */

import { afterEach } from "vitest";
import type * as Package from "../../src/node.js";

export interface RunningBroker {
  readonly url: string;
  start(): Promise<void>;
  kill(): Promise<void>;
  restart(): Promise<void>;
  freeze(): void;
  thaw(): void;
  end(): Promise<void>;
}

export interface UnderTest {
  nolag: typeof Package;
  startBroker(settings?: Record<string, string>, token?: object): Promise<RunningBroker>;
}

let underTest: UnderTest | undefined;

export function provide(provided: UnderTest): void {
  underTest = provided;
}

export function given(): UnderTest {
  if (underTest === undefined) throw new Error("no package was provided");
  return underTest;
}

export type Client = Package.NoLagClient;
export type Options = Package.NoLagOptions;

const open: Client[] = [];
const running: RunningBroker[] = [];

afterEach(async () => {
  for (const client of open.splice(0)) client.disconnect();
  await Promise.all(running.splice(0).map((broker) => broker.end()));
});

/** A broker that ends with the test. */
export async function broker(settings: Record<string, string> = {}, token: object = {}): Promise<RunningBroker> {
  const started = await given().startBroker(settings, token);
  running.push(started);
  return started;
}

/** A client that is disconnected when the test ends. It tries again fast, so that tests do not wait. */
export function client(url: string, name = "alice", options: Options = {}): Client {
  const made = given().nolag.NoLag(`dev-token-${name}`, {
    url,
    backoff: { baseMs: 20, maxMs: 100 },
    logger: { debug() {}, warn() {}, error() {} },
    ...options,
  });
  open.push(made);
  return made;
}

/** The same, connected. */
export async function connected(url: string, name = "alice", options: Options = {}): Promise<Client> {
  const made = client(url, name, options);
  await made.connect();
  return made;
}

/** Waits for one event. */
export function event(of: Client, name: string): Promise<unknown[]> {
  return new Promise((resolve) => of.once(name, ((...args: unknown[]) => resolve(args)) as never));
}

/** Waits for the answer to a subscribe. */
export function subscribed(of: Client, topic: string, options = {}): Promise<void> {
  return new Promise((resolve, reject) =>
    of.subscribe(topic, options, (error) => (error === null ? resolve() : reject(error))),
  );
}

/** Collects what a handler gets, until there are as many. */
export function collected(of: Client, topic: string, count: number): Promise<unknown[]> {
  const got: unknown[] = [];
  return new Promise((resolve) =>
    of.on(topic, (data) => {
      got.push(data);
      if (got.length === count) resolve(got);
    }),
  );
}

/** The events that a client tells, by name, in order. */
export function told(of: Client, ...names: string[]): string[] {
  const heard: string[] = [];
  for (const name of names) of.on(name, (() => heard.push(name)) as never);
  return heard;
}
