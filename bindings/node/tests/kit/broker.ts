/** The broker's program as a process that a test starts and stops. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const PROGRAM = process.env.NOLAG_BROKER ?? resolve(import.meta.dirname, "../../../../target/debug/nolag-broker");

/** Rooms of the app `demo` that alice and bob may use. */
const ROOMS = ["general", "kitchen", "garden"];

function tokens(changes: object): object {
  const of = (name: string) => ({
    actorTokenId: name,
    projectId: "demo-project",
    organizationId: "demo-org",
    actorType: "user",
    appId: "demo-app",
    allowedTopics: ROOMS.map((room) => ({
      pattern: `demo/${room}/#`,
      permission: "pubSub",
      room_id: `room-${room}`,
      room_slug: room,
    })),
    allowedLobbies: [{ lobby_slug: "lounge", lobby_id: "lobby-lounge" }],
    ...changes,
  });
  return { tokens: { "dev-token-alice": of("alice"), "dev-token-bob": of("bob") } };
}

/** A broker that runs, or has run and may run again on the same port. */
export class Broker {
  url = "";
  readonly #folder = mkdtempSync(join(tmpdir(), "nolag-node-"));
  readonly #settings: Record<string, string>;
  #process: ChildProcess | undefined;

  private constructor(settings: Record<string, string>) {
    this.#settings = settings;
  }

  static async start(settings: Record<string, string> = {}, token: object = {}): Promise<Broker> {
    const broker = new Broker(settings);
    broker.grant(token);
    await broker.start();
    return broker;
  }

  /** What the tokens of alice and bob say otherwise; the broker reads it when it starts. */
  grant(changes: object): void {
    writeFileSync(join(this.#folder, "auth.json"), JSON.stringify(tokens(changes)));
  }

  /** Starts it, on the port that it had. */
  async start(): Promise<void> {
    const port = this.url === "" ? "0" : new URL(this.url).port;
    const settings = { PUBLISH_RATE_LIMIT: "1000000", ...this.#settings };
    const child = spawn(PROGRAM, ["--bind", "127.0.0.1", "--port", port], {
      cwd: this.#folder,
      env: settings,
      stdio: ["ignore", "pipe", "inherit"],
    });
    this.#process = child;
    const lines = createInterface({ input: child.stdout });
    const [first] = (await once(lines, "line")) as [string];
    if (!first.startsWith("listening on ws://")) throw new Error(`the broker began with ${first}`);
    this.url = first.replace("listening on ", "");
  }

  /** Ends it at once, as a crash would. */
  async kill(): Promise<void> {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    child.kill("SIGKILL");
    await once(child, "exit");
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  freeze(): void {
    this.#process?.kill("SIGSTOP");
  }

  thaw(): void {
    this.#process?.kill("SIGCONT");
  }

  async end(): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
