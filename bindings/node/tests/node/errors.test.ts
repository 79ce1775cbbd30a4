/** Each error is what the table for all languages says (API-094). */

import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { resolve } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import type { NoLagError } from "../../src/errors.js";
import { refuse, Scripted, silent } from "../kit/scripted.js";
import { type Client, client, connected, event, given, type Options } from "../kit/under-test.js";

interface Row {
  class: string;
  code: string;
  when: string;
  message?: string;
  serverCode?: number;
  maxSizeBytes?: number;
  retryable?: boolean;
  fatal?: boolean;
  outcomeUnknown?: boolean;
}

const TABLE = resolve(import.meta.dirname, "../../../../conformance/client-errors.json");
const rows: Row[] = JSON.parse(readFileSync(TABLE, "utf8")).errors;
const TOPIC = "demo/general/messages";

/** What a promise rejects with. */
async function of(promise: Promise<unknown>): Promise<NoLagError> {
  return promise.then(
    () => {
      throw new Error("it succeeded");
    },
    (error) => error,
  );
}

/** The first event of this name, which something brings about. */
async function told(by: Client, happen: () => void, name = "error"): Promise<NoLagError> {
  const heard = event(by, name);
  happen();
  return (await heard)[0] as NoLagError;
}

/** A port that answers connections so, or not at all. */
async function port(answer?: string): Promise<number> {
  const server = createServer((socket) => {
    socket.on("error", () => {});
    if (answer !== undefined) socket.end(answer);
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  onTestFinished(() => void server.close());
  return (server.address() as { port: number }).port;
}

/** What the situations have at hand. */
class Stage {
  constructor(
    readonly scripted: Scripted,
    readonly expected: Row,
  ) {}

  connect(url = this.scripted.url, options: Options = {}): Promise<NoLagError> {
    return of(client(url, "alice", options).connect());
  }

  connected(options: Options = {}): Promise<Client> {
    return connected(this.scripted.url, "alice", options);
  }

  async offline(options: Options = {}): Promise<Client> {
    const made = await this.connected(options);
    const lost = event(made, "disconnect");
    this.scripted.shut();
    await lost;
    return made;
  }

  /** A rule that refuses with the error that is expected. */
  refusal() {
    const { code, serverCode, maxSizeBytes } = this.expected;
    return refuse({ error: code, ...(serverCode && { code: serverCode }), ...(maxSizeBytes && { maxSizeBytes }) });
  }
}

const SITUATIONS: Record<string, (stage: Stage) => Promise<NoLagError>> = {
  "connect without a URL": () => of(given().nolag.NoLag("t").connect()),
  "connect to ftp://": (stage) => stage.connect("ftp://127.0.0.1/ws"),
  "an option that does not exist": async (stage) => of((async () => stage.connected({ what: 1 } as never))()),
  "publish before connect": (stage) => of(client(stage.scripted.url).publish(TOPIC, 1)),
  "connect to an unknown host": (stage) => stage.connect("ws://nowhere.invalid/ws"),
  "connect where nobody listens": (stage) => stage.connect("ws://127.0.0.1:1/ws"),
  "connect by TLS to a server without": async (stage) =>
    stage.connect(`wss://127.0.0.1:${await port("HTTP/1.1 400 Bad Request\r\n\r\n")}/ws`),
  "connect to a silent port": async (stage) =>
    stage.connect(`ws://127.0.0.1:${await port()}/ws`, { connectTimeout: 100 }),
  "connect and be answered 404": (stage) => {
    stage.scripted.refusal = 404;
    return stage.connect();
  },
  "connect and be answered 503": (stage) => {
    stage.scripted.refusal = 503;
    return stage.connect();
  },
  "ask for presence and be cut": async (stage) => {
    stage.scripted.rules.getPresence = silent;
    const alice = await stage.connected();
    const asking = of(alice.setApp("demo").setRoom("general").fetchPresence());
    const link = await stage.scripted.link();
    await link.next("getPresence");
    link.cut();
    return asking;
  },
  "publish without reconnection and be cut": async (stage) => {
    stage.scripted.rules.publish = silent;
    const alice = await stage.connected({ reconnect: false });
    const publishing = of(alice.publish(TOPIC, 1));
    const link = await stage.scripted.link();
    await link.next("publish");
    link.cut();
    return publishing;
  },
  "the broker falls silent": async (stage) => {
    const alice = await stage.connected({ heartbeatInterval: 50, heartbeatTimeout: 100 });
    const link = await stage.scripted.link();
    return told(alice, () => {
      link.isFrozen = true;
    });
  },
  "the broker closes with 1002": async (stage) => {
    const alice = await stage.connected();
    const link = await stage.scripted.link();
    return told(alice, () => link.close(1002));
  },
  "auth is not answered": (stage) => {
    stage.scripted.rules.auth = silent;
    return stage.connect(undefined, { authTimeout: 100 });
  },
  "publish is answered": async (stage) => {
    stage.scripted.rules.publish = stage.refusal();
    return of((await stage.connected()).publish(TOPIC, 1));
  },
  "publish to a wildcard": async (stage) => of((await stage.connected()).publish("demo/+/messages", 1)),
  "the broker takes a subscription away": async (stage) => {
    const alice = await stage.connected();
    await alice.subscription(TOPIC).ready;
    const link = await stage.scripted.link();
    return told(alice, () => link.send({ type: "unsubscribed", topic: TOPIC, reason: "not_authorized" }));
  },
  "subscribe is answered": async (stage) => {
    stage.scripted.rules.subscribe = stage.refusal();
    return of((await stage.connected()).subscription(TOPIC).ready);
  },
  "a lobby is answered": async (stage) => {
    stage.scripted.rules.lobbySubscribe = stage.refusal();
    return of((await stage.connected()).setApp("demo").setLobby("lounge").subscribe());
  },
  "presence is answered": async (stage) => {
    stage.scripted.rules.presence = stage.refusal();
    const alice = await stage.connected();
    return told(alice, () => alice.setPresence({}, "attic"));
  },
  "publish is not answered": async (stage) => {
    stage.scripted.rules.publish = silent;
    return of((await stage.connected({ ackTimeout: 100 })).publish(TOPIC, 1));
  },
  "subscribe is not answered": async (stage) => {
    stage.scripted.rules.subscribe = silent;
    const alice = await stage.connected({ ackTimeout: 100 });
    return new Promise((heard) => alice.subscribe(TOPIC, (error) => heard(error as NoLagError)));
  },
  "presence is not answered": async (stage) => {
    stage.scripted.rules.getPresence = silent;
    return of((await stage.connected({ presenceTimeout: 100 })).setApp("demo").setRoom("general").fetchPresence());
  },
  "a lobby is not answered": async (stage) => {
    stage.scripted.rules.getLobbyPresence = silent;
    return of((await stage.connected({ ackTimeout: 100 })).setApp("demo").setLobby("lounge").fetchPresence());
  },
  "flush does not end": async (stage) => {
    const alice = await stage.offline();
    alice.emit(TOPIC, 1);
    return of(alice.flush({ timeoutMs: 50 }));
  },
  "publish offline into a full queue": async (stage) => {
    const alice = await stage.offline({ offlineQueue: { maxMessages: 1 } });
    alice.emit(TOPIC, 1);
    return of(alice.publish(TOPIC, 2));
  },
  "wait offline for too long": async (stage) => of((await stage.offline()).publish(TOPIC, 1, { ttlMs: 50 })),
  "publish more than the limit": async (stage) => of((await stage.connected()).publish(TOPIC, new Uint8Array(921_600))),
  "publish offline more than the queue holds": async (stage) =>
    of((await stage.offline({ offlineQueue: { maxBytes: 10 } })).publish(TOPIC, new Uint8Array(100))),
  "publish what cannot be written": async (stage) => of((await stage.connected()).publish(TOPIC, () => {})),
  "publish after close": async (stage) => {
    const alice = await stage.connected();
    await alice.close();
    return of(alice.publish(TOPIC, 1));
  },
  "publish and disconnect": async (stage) => {
    stage.scripted.rules.publish = silent;
    const alice = await stage.connected();
    const publishing = of(alice.publish(TOPIC, 1));
    await (await stage.scripted.link()).next("publish");
    alice.disconnect();
    return publishing;
  },
  "give up reconnecting": async (stage) => {
    const alice = await stage.connected({ maxReconnectAttempts: 1 });
    stage.scripted.refusal = 503;
    const link = await stage.scripted.link();
    return told(alice, () => link.cut(), "failed");
  },
};

/** The broker's answer to `auth`. */
const AUTH = "auth is answered ";

describe("API-094", () => {
  // Where the package cannot work is tested with the package: there no add-on is installed.
  const here = rows.filter(({ when }) => when !== "a call where the client cannot work");

  test.each(here)("$class $code: $when", async (expected) => {
    const scripted = await Scripted.open();
    const stage = new Stage(scripted, expected);
    let situation = SITUATIONS[expected.when];
    if (situation === undefined && expected.when.startsWith(AUTH)) {
      const error = expected.when.slice(AUTH.length);
      scripted.rules.auth = (link) => link.send({ type: "auth", success: false, error });
      situation = () => stage.connect();
    }
    if (situation === undefined) throw new Error(`nothing brings it about that ${expected.when}`);
    const error = await situation(stage);
    const { nolag } = given();
    expect(error).toBeInstanceOf(nolag[expected.class as "NoLagError"]);
    expect({
      class: error.name,
      code: error.code,
      serverCode: error.serverCode,
      maxSizeBytes: error.maxSizeBytes,
      retryable: error.retryable,
      fatal: error.fatal,
      outcomeUnknown: error.outcomeUnknown,
    }).toEqual({
      class: expected.class,
      code: expected.code,
      serverCode: expected.serverCode,
      maxSizeBytes: expected.maxSizeBytes,
      retryable: expected.retryable ?? false,
      fatal: expected.fatal ?? false,
      outcomeUnknown: expected.outcomeUnknown ?? false,
    });
    if (expected.message !== undefined) expect(error.message).toBe(expected.message);
    expect(error.message).not.toBe("");
  });
});
