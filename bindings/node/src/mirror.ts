/** What a client knows of its connection without asking. It changes just before the event that tells of it. */

import { Registry } from "./registry.js";
import type { ActorPresence, ActorType, ConnectionState, ConnectionStatus, NoLagOptions } from "./types.js";

/** States in which the client neither has a connection nor tries to get one. */
const OFF: ReadonlySet<ConnectionState> = new Set(["idle", "closed", "failed"]);

/** A roster's key: the app, where it is known, and the room. */
function rosterKey(app: string | undefined, room: string | undefined): string {
  return `${app ?? ""}/${room ?? ""}`;
}

export class Mirror extends Registry {
  protected readonly options: NoLagOptions;
  protected mirrored: ConnectionState = "idle";
  protected wasConnected = false;
  protected isRecovering = false;
  protected identity: { actorId: string | null; actorType: ActorType | null; projectId: string | null };
  protected version: number | null = null;
  protected granted: readonly string[] = [];
  protected replay: { count: number; received: number } | null = null;
  readonly #rosters = new Map<string, Map<string, ActorPresence>>();

  constructor(options: NoLagOptions) {
    super(options.logger);
    this.options = options;
    this.identity = { actorId: options.actorTokenId ?? null, actorType: null, projectId: null };
  }

  /** Where the connection stands, coarsely. */
  get status(): ConnectionStatus {
    if (this.mirrored === "connected") return "connected";
    if (this.isOff || this.mirrored === "closing") return "disconnected";
    const isFirst = !this.wasConnected && (this.mirrored === "connecting" || this.mirrored === "authenticating");
    return isFirst ? "connecting" : "reconnecting";
  }

  /** Where the connection stands. */
  get state(): ConnectionState {
    return this.mirrored;
  }

  /** Whether the broker has accepted the client. */
  get connected(): boolean {
    return this.mirrored === "connected";
  }

  /** Whether the answers to what was sent after connecting are still awaited. */
  get recovering(): boolean {
    return this.isRecovering;
  }

  /** Who this client is to the broker, once it has told. */
  get actorId(): string | null {
    return this.identity.actorId;
  }

  get actorType(): ActorType | null {
    return this.identity.actorType;
  }

  get projectId(): string | null {
    return this.identity.projectId;
  }

  /** The negotiated version of the protocol; null before the first connection. */
  get protocolVersion(): number | null {
    return this.version;
  }

  /** What the broker granted on the last connection, beyond the published protocol. */
  get features(): readonly string[] {
    return this.granted;
  }

  /** Whether messages are being replayed. */
  get isReplayingMessages(): boolean {
    return this.replay !== null;
  }

  /** How many messages are replayed, and how many have come. */
  get replayProgress(): { count: number; received: number } | null {
    return this.replay && { ...this.replay };
  }

  /** Whether subscriptions share their messages unless told otherwise. */
  get loadBalanced(): boolean {
    return this.options.loadBalance ?? false;
  }

  /** The group that they share them with. */
  get loadBalanceGroup(): string | undefined {
    return this.options.loadBalanceGroup;
  }

  /** Everybody in the rooms, as far as is known without asking. */
  getPresence(): ActorPresence[];
  /** Who an actor is, as far as is known without asking. */
  getPresence(actorId: string): ActorPresence | undefined;
  getPresence(actorId?: string): ActorPresence[] | ActorPresence | undefined {
    const rosters = [...this.#rosters.values()];
    if (actorId === undefined) return rosters.flatMap((roster) => [...roster.values()]);
    return rosters.find((roster) => roster.has(actorId))?.get(actorId);
  }

  protected get isOff(): boolean {
    return OFF.has(this.mirrored);
  }

  protected rosterOf(app: string, room: string): Record<string, ActorPresence> {
    // Without the feature `rooms` the broker does not tell the app.
    const roster = this.#rosters.get(rosterKey(app, room)) ?? this.#rosters.get(rosterKey(undefined, room));
    return Object.fromEntries(roster ?? []);
  }

  protected note(change: "join" | "update" | "leave" | "waking", actor: ActorPresence): void {
    const key = rosterKey(actor.app, actor.roomId);
    let roster = this.#rosters.get(key);
    if (roster === undefined) {
      roster = new Map();
      this.#rosters.set(key, roster);
    }
    if (change === "leave") roster.delete(actor.actorTokenId);
    else roster.set(actor.actorTokenId, actor);
  }

  /** Knows nothing more of a room that was left. */
  protected forgetRoster(app: string | undefined, room: string | undefined): void {
    if (!this.#rosters.delete(rosterKey(app, room))) this.#rosters.delete(rosterKey(undefined, room));
  }

  protected forgetRosters(): void {
    this.#rosters.clear();
  }
}
