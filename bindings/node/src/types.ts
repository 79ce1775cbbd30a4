/** What users see of topics, messages, presence and settings. */

import type { NoLagError } from "./errors.js";
import type { Position } from "./native.js";

export type { Position } from "./native.js";

/** Quality of service: 0 written once, 1 confirmed by the broker, 2 confirmed and handed over once where the broker can. */
export type QoS = 0 | 1 | 2;

/** Where the connection stands, coarsely. */
export type ConnectionStatus = "disconnected" | "connecting" | "connected" | "reconnecting";

/** Where the connection stands. */
export type ConnectionState =
  | "idle"
  | "connecting"
  | "authenticating"
  | "connected"
  | "backoff"
  | "suspended"
  | "closing"
  | "closed"
  | "failed";

/** What an actor is, an open set. */
export type ActorType =
  | "device"
  | "user"
  | "server"
  | "service"
  | "session"
  | "agent"
  | "orchestrator"
  | "observer"
  | (string & {});

/** What a token allows on a topic. */
export type Permission = "subscribe" | "publish" | "pubSub";

/** What an actor tells of itself. */
export type PresenceData = Record<string, unknown>;

/** Somebody in a room. */
export interface ActorPresence {
  actorTokenId: string;
  actorType?: ActorType;
  /** Its newest presence. */
  presence: PresenceData;
  /** The presence of each of its connections, oldest first. */
  connections?: PresenceData[];
  /** The app's slug, where the broker tells rooms apart by it. */
  app?: string;
  /** The room's slug. */
  roomId?: string;
  /** When it came, as the broker sent it. */
  joinedAt?: number;
  status?: "online" | "offline" | "waking";
  /** The version of what it advertises. */
  advertisementVersion?: number;
}

/** Somebody in a lobby's rooms came, changed or left. */
export interface LobbyPresenceEvent {
  lobbyId: string;
  roomId: string;
  actorId: string;
  data: PresenceData;
  app?: string;
}

/** Who is in a lobby's rooms: by room, by actor. */
export type LobbyPresenceState = Record<string, Record<string, PresenceData>>;

/** What came beside a payload; what the broker did not send is `undefined`. */
export interface MessageMeta {
  /** The same for all receivers. */
  readonly msgId: string | undefined;
  /** Whether it is replayed: it was published before this subscription, or while it was away. */
  readonly isReplay: boolean;
  /** The filter key, or the rest of a deeper topic. */
  readonly filter: string | undefined;
  /** The publisher. */
  readonly from: string | undefined;
  readonly fromType: ActorType | undefined;
  /** When the broker received it, ms since 1970. */
  readonly timestamp: number | undefined;
  /** The subscription that it came for. */
  readonly topic: string;
  /** Whether the broker asks for an acknowledgement. */
  readonly requiresAck: boolean;
  /** Whether it was kept, and a subscribe brought it. */
  readonly retained: boolean;
  /** Whether another member of the group had it before. */
  readonly redelivered: boolean;
  /** Its number in the project. */
  readonly seq: number | undefined;
  /** The topic that it was published to, where that is not the subscription. */
  readonly sourceTopic: string | undefined;
  /** When this client took it, ms since 1970. */
  readonly receivedAt: number;
  /** A W3C `traceparent`. */
  readonly trace: string | undefined;
}

/** A message of a subscription. */
export interface Message<T = unknown> {
  readonly topic: string;
  readonly data: T;
  readonly meta: MessageMeta;
  /** Acknowledges it, in manual mode. */
  ack(): void;
}

/** What became of a publish. */
export interface Receipt {
  /** The reference it was sent under, if it had one. */
  msgRef?: string;
  topic: string;
  /** The quality asked for. */
  qos: QoS;
  /** The quality that was given. */
  effectiveQos: QoS;
  /** `written`: handed to the transport. `accepted`: the broker took responsibility. `duplicate`: it had done so before. */
  outcome: "written" | "accepted" | "duplicate";
  /** How well the broker keeps it, where it keeps it. */
  level?: "memory" | "disk" | "replicated" | (string & {});
  /** How often it was written. */
  attempts: number;
  /** From the call to the first writing. */
  queuedMs: number;
  /** From the last writing to the answer. */
  latencyMs: number;
}

/** Which messages of a topic: texts are alternatives, a list of texts stands for all of them at once. */
export type Filters = readonly (string | readonly string[])[];

/** How a topic is subscribed. */
export interface SubscribeOptions {
  /** Advisory; the client's default where absent. */
  qos?: QoS;
  /** Share the messages with the other members of a group. */
  loadBalance?: boolean;
  /** The group; the actor's own where absent. */
  loadBalanceGroup?: string;
  filters?: Filters;
  /** So many of the newest messages that the broker has kept come first, 1 to 1,000; not for groups. */
  history?: number;
  /** Continue after this position; not for groups. */
  resumeFrom?: Position;
  /** A message that is not acknowledged goes to another member; only for groups. */
  redeliver?: boolean;
  /** After how long, 1,000 to 3,600,000 ms; only with `redeliver`. */
  ackTimeoutMs?: number;
}

/** How a topic is iterated. */
export interface SubscriptionOptions extends SubscribeOptions {
  /** How many messages may wait for the iterator, at least 1. */
  bufferSize?: number;
  /** What happens to one too many: the client reads no more until there is room, or the oldest or the new one is dropped. */
  overflow?: "pause" | "dropOldest" | "dropNewest";
  /** Ends the subscription. */
  signal?: AbortSignal;
}

/** How a message is published with `emit`. */
export interface EmitOptions {
  /** The client's default where absent. */
  qos?: QoS;
  /** Keep the message for later subscribers. */
  retain?: boolean;
  /** For how long, 1 to 31,536,000 s. */
  retainTtl?: number;
  /** Whether this client's own subscriptions get it; true unless told. */
  echo?: boolean;
  /** One filter value; counts before `filters`. */
  filter?: string;
  /** Filter values that make one group. */
  filters?: readonly string[];
  /** How long it may wait in the queue. */
  ttlMs?: number;
  /** A reference that makes repeating it harmless, unique for 10 minutes; made by the client where absent. */
  msgRef?: string;
  /** A W3C `traceparent`, for subscribers. */
  trace?: string;
}

/** How a message is published. */
export interface PublishOptions extends EmitOptions {
  /** Withdraws it. */
  signal?: AbortSignal;
}

/** What a token is asked for. */
export interface TokenRequest {
  reason: "initial" | "reconnect" | "expired" | "rejected";
  /** The attempt it is for, from 1. */
  attempt: number;
  /** What failed last. */
  lastError: NoLagError | undefined;
  /** Aborted when the token is no longer needed. */
  signal: AbortSignal;
}

/** A token, and until when it is valid (a date, or ms since 1970). */
export interface Token {
  token: string;
  expiresAt?: Date | number;
}

/** Asked for a token before every connection. */
export type TokenProvider = (request: TokenRequest) => string | Token | Promise<string | Token>;

/** Takes what a client logs; `console` is one. */
export type Logger = Pick<Console, "debug" | "warn" | "error">;

/** The settings of a client. Times are in ms. */
export interface NoLagOptions {
  /** Where the broker is; the environment's `NOLAG_URL` where absent and there is an environment. */
  url?: string;
  /** Whether the client connects again after a loss. Default true. */
  reconnect?: boolean;
  /** The first wait between attempts, instead of `backoff.baseMs`; each further one is 1.5 times as long. */
  reconnectInterval?: number;
  /** How many attempts in a row may fail; 0 or null for any number, the default. */
  maxReconnectAttempts?: number | null;
  /** The waits between attempts: at random between half and all of `min(maxMs, baseMs × factor^(n−1))`. */
  backoff?: { baseMs?: number; factor?: number; maxMs?: number; jitter?: "equal" };
  /** What becomes of `connect` when the first attempt fails: it rejects and goes on, rejects and gives up, or waits. */
  initialConnect?: "background" | "once" | "wait";
  /** Default 10,000. */
  connectTimeout?: number;
  /** Default 10,000. */
  authTimeout?: number;
  /** Of subscribe, filters, publish and lobbies. Default 10,000. */
  ackTimeout?: number;
  /** Default 5,000. */
  presenceTimeout?: number;
  /** Between heartbeats; 0 sends none. Default 30,000, at most 45,000. */
  heartbeatInterval?: number;
  /** How long the broker may stay silent after a heartbeat. Default 10,000. */
  heartbeatTimeout?: number;
  /** Has no meaning outside browsers. */
  disconnectOnHidden?: boolean;
  /** The default of subscribe and publish. Default 1. */
  qos?: QoS;
  /** Whether subscriptions share their messages within a group unless told otherwise. */
  loadBalance?: boolean;
  /** The group; the actor's own where absent. */
  loadBalanceGroup?: string;
  /** For how long acknowledgements are gathered. Default 0: with the messages that arrived together. */
  ackBatchInterval?: number;
  /** When a message is acknowledged: when it was dispatched, when its handlers have succeeded, or by the application. */
  ackMode?: "auto" | "afterHandler" | "manual";
  /** Known as the actor before the broker has told. */
  actorTokenId?: string;
  /** Sent for the broker's logs only. */
  projectId?: string;
  /** Names this client; 16 random hex digits where absent. */
  clientId?: string;
  /** What the broker is asked for beyond the published protocol; all that there is where absent. */
  features?: readonly string[];
  /** Logs what happens, without payloads and tokens. */
  debug?: boolean;
  /** Publishes that wait for a connection, or for their turn. */
  offlineQueue?: {
    enabled?: boolean;
    maxMessages?: number;
    maxBytes?: number;
    ttlMs?: number;
    overflow?: "reject" | "dropOldest" | "block";
    qos0?: "drop" | "queue";
    flushRate?: number;
  };
  /** How many publishes may be unacknowledged at a time. Default 64. */
  maxInFlight?: number;
  /** The largest payload, in bytes of MessagePack. Default 921,600. */
  maxMessageSize?: number;
  /** The window in which a repeated message is recognised. */
  dedupe?: { enabled?: boolean; maxIds?: number; windowMs?: number };
  /** The defaults of iterators. */
  receiveBuffer?: { maxMessages?: number; overflow?: "pause" | "dropOldest" | "dropNewest" };
  /** The same as a function in the place of the token. */
  tokenProvider?: TokenProvider;
  /** How long before its expiry a token is renewed. Default 60,000. */
  tokenRefreshMarginMs?: number;
  /** Further headers of the request for the WebSocket. */
  headers?: Record<string, string>;
  /** A proxy's URL, or false for none; the environment's where absent. */
  proxy?: string | false;
  /** Certificates to trust beside the bundled roots, PEM. */
  tls?: { ca?: string | Uint8Array };
  /** Where logs go. Default `console`, for warnings only unless `debug` is set. */
  logger?: Logger;
  /** Has no meaning in Node, which is told nothing of the network. */
  networkHints?: "auto" | "off";
  /** Has no meaning in Node, which is told nothing of sleep: the client finds out by itself. */
  lifecycleHints?: "auto" | "off";
}

/** What counts; the names are the same in every language. Times are in ms. */
export interface Stats {
  connects: number;
  connect_failures: number;
  reconnects: number;
  downtime_ms: number;
  frames_in: number;
  frames_out: number;
  bytes_in: number;
  bytes_out: number;
  published: number;
  publish_failures: number;
  publish_latency_ms: number | null;
  queue_dropped: number;
  queue_messages: number;
  queue_bytes: number;
  queue_oldest_ms: number | null;
  in_flight: number;
  received: number;
  duplicates: number;
  gaps: number;
  handler_errors: number;
  acks_sent: number;
  ack_backlog: number;
  decode_errors: number;
  subscriptions: number;
  rtt_ms: number | null;
}

/** Messages of a subscription may have been missed. */
export interface Gap {
  topic: string;
  /** `epoch`, `expired`, `too_many`, or `unsupported` where the broker cannot continue subscriptions. */
  reason: string;
  /** When the lost connection last received anything, ms since 1970. */
  since: number | null;
}

/** The end of the recovery that follows every connect. */
export interface Ready {
  resubscribed: string[];
  refused: { topic: string; error: NoLagError }[];
  /** There was a loss, and every subscription continues where it stopped. */
  resumed: boolean;
  gaps: Gap[];
}

export interface ReplayStartEvent {
  topic?: string;
  count: number;
  oldestTimestamp?: number;
  newestTimestamp?: number;
}

export interface ReplayEndEvent {
  topic?: string;
  replayed: number;
}

export interface StateChange {
  from: ConnectionState;
  to: ConnectionState;
  reason: string;
  closeCode?: number;
}

export type ConnectHandler = () => void;
export type DisconnectHandler = (reason: string) => void;
export type ReconnectHandler = () => void;
export type ErrorHandler = (error: NoLagError) => void;
export type PresenceHandler = (actor: ActorPresence) => void;
export type LobbyPresenceHandler = (event: LobbyPresenceEvent) => void;
// biome-ignore lint/suspicious/noExplicitAny: handlers say themselves what they expect
export type MessageHandler = (data: any, meta: MessageMeta) => unknown;
// biome-ignore lint/suspicious/noExplicitAny: handlers say themselves what they expect
export type AnyHandler = (topic: string, data: any, meta: MessageMeta) => unknown;
export type ReplayStartHandler = (event: ReplayStartEvent) => void;
export type ReplayEndHandler = (event: ReplayEndEvent) => void;
/** Called once, with `null` or what went wrong. */
export type AckCallback = (error: NoLagError | null) => void;

/** The handlers of each event that is no topic. */
export interface NoLagEvents {
  connecting: () => void;
  connect: ConnectHandler;
  connected: ConnectHandler;
  disconnect: DisconnectHandler;
  disconnected: () => void;
  reconnecting: (attempt: { attempt: number; delayMs: number; reason: string }) => void;
  reconnect: ReconnectHandler;
  ready: (ready: Ready) => void;
  error: ErrorHandler;
  failed: ErrorHandler;
  "presence:join": PresenceHandler;
  "presence:leave": PresenceHandler;
  "presence:update": PresenceHandler;
  "presence:waking": PresenceHandler;
  "presence:replaced": (room: { app?: string; room: string }) => void;
  presenceList: (actors: ActorPresence[], roomId: string | undefined) => void;
  hydration: (topic: string, data: unknown) => void;
  "replay:start": ReplayStartHandler;
  "replay:end": ReplayEndHandler;
  gap: (gap: Gap) => void;
  overflow: (overflow: { topic: string; dropped: number }) => void;
  drain: () => void;
  state: (change: StateChange) => void;
}

/** The events that are no topics. */
export type NoLagEventType = keyof NoLagEvents;
