import { describe, expect, test } from "vitest";
import { broker, client, connected, event, given, subscribed, told } from "../kit/under-test.js";

const TOPIC = "demo/general/messages";

describe("making a client", () => {
  test("API-082: with and without new, and as the default export", async () => {
    const { NoLag, NoLagSocket, default: byDefault } = given().nolag;
    const made = [NoLag("t"), new NoLag("t"), byDefault("t"), new NoLagSocket("t")];
    for (const one of made) {
      expect(one).toBeInstanceOf(NoLag);
      expect([one.status, one.state, one.connected, one.actorId]).toEqual(["disconnected", "idle", false, null]);
    }
  });

  test("options that are none are refused at once, by name", () => {
    const { NoLag, ConfigError } = given().nolag;
    const refused = (options: object) => {
      try {
        NoLag("t", options as never);
      } catch (error) {
        expect(error).toBeInstanceOf(ConfigError);
        return (error as Error).message;
      }
      throw new Error("it was taken");
    };
    expect(refused({ urll: "x" })).toMatch(/there is no option "urll"/);
    expect(refused({ reconnect: 1 })).toBe("reconnect: true or false is expected");
    expect(refused({ offlineQueue: { ttlMs: 0 } })).toBe("offlineQueue.ttlMs: a time in ms above 0 is expected");
    expect(refused({ offlineQueue: { ttl: 1 } })).toMatch(/no option "offlineQueue.ttl"; there are enabled/);
    expect(refused({ qos: 3 })).toBe("qos: 0, 1 or 2 is expected");
    expect(() => NoLag("")).toThrow(/a token is missing/);
  });

  test("API-001: without a URL connect fails at once, and the client stays usable", async () => {
    const { NoLag } = given().nolag;
    const one = NoLag("t");
    await expect(one.connect()).rejects.toMatchObject({ name: "ConfigError", code: "url_required" });
    expect(one.state).toBe("idle");
    await expect(NoLag("t", { url: "nonsense" }).connect()).rejects.toMatchObject({ code: "bad_url" });
    await expect(NoLag("t", { url: "ws://a:b@c" }).connect()).rejects.toMatchObject({ code: "bad_url" });
  });
});

describe("connecting", () => {
  test("the state is told and read alike, and connect joins what is under way", async () => {
    const { url } = await broker();
    const alice = client(url);
    const seen: string[] = [];
    alice.on("state", ({ to }) => {
      expect(alice.state).toBe(to);
      seen.push(to);
    });
    const first = alice.connect();
    expect(alice.status).toBe("connecting");
    await Promise.all([first, alice.connect()]);
    expect(alice.connected).toBe(true);
    expect([alice.actorId, alice.actorType, alice.projectId]).toEqual(["alice", "user", "demo-project"]);
    expect(alice.protocolVersion).toBeGreaterThanOrEqual(2);
    await alice.connect();
    expect(seen).toEqual(["connecting", "authenticating", "connected"]);
  });

  test("a refused token is fatal, told once, and connect may be called again", async () => {
    const { url } = await broker();
    const eve = client(url, "eve");
    const failed = event(eve, "failed");
    await expect(eve.connect()).rejects.toMatchObject({ name: "AuthError", code: "access_denied", fatal: true });
    await failed;
    expect(eve.state).toBe("failed");
    await expect(eve.connect()).rejects.toMatchObject({ code: "access_denied" });
  });

  test("client-api 3.2: the first attempt's failure is told, and the attempts go on", async () => {
    const one = await broker();
    await one.kill();
    const alice = client(one.url);
    await expect(alice.connect()).rejects.toMatchObject({ name: "ConnectionError", code: "refused" });
    expect(alice.status).toBe("reconnecting");
    await one.start();
    await alice.waitForConnected({ timeoutMs: 10_000 });
    const once = client("ws://127.0.0.1:1", "alice", { initialConnect: "once" });
    await expect(once.connect()).rejects.toMatchObject({ code: "refused" });
    expect(once.state).toBe("failed");
  });

  test("API-078: an abort rejects with the signal's reason, and closes what was opening", async () => {
    const one = await broker();
    one.freeze();
    const alice = client(one.url);
    const abort = new AbortController();
    const connecting = alice.connect({ signal: abort.signal });
    abort.abort(new Error("changed my mind"));
    await expect(connecting).rejects.toThrow("changed my mind");
    one.thaw();
    expect(alice.status).toBe("disconnected");
    await alice.connect();
  });

  test("API-072: a provider is asked before every connection", async () => {
    const one = await broker();
    const reasons: string[] = [];
    const { NoLag } = given().nolag;
    const alice = NoLag(
      async ({ reason, attempt, signal }) => {
        reasons.push(`${reason} ${attempt} ${signal.aborted}`);
        return { token: "dev-token-alice", expiresAt: Date.now() + 3_600_000 };
      },
      { url: one.url, backoff: { baseMs: 20 } },
    );
    await alice.connect();
    const back = event(alice, "reconnect");
    await one.restart();
    await back;
    expect(reasons[0]).toBe("initial 1 false");
    expect(reasons.at(-1)).toMatch(/^reconnect/);
    alice.disconnect();
  });

  test("a provider that throws is a failure that passes; one that gives nothing too", async () => {
    const { url } = await broker();
    const { NoLag } = given().nolag;
    let asked = 0;
    const alice = NoLag(
      () => {
        asked += 1;
        if (asked === 1) throw new Error("no network");
        return (asked === 2 ? undefined : "dev-token-alice") as string;
      },
      { url, backoff: { baseMs: 20 }, initialConnect: "wait", logger: { debug() {}, warn() {}, error() {} } },
    );
    await alice.connect();
    expect(asked).toBe(3);
    alice.disconnect();
  });
});

describe("a loss", () => {
  test("FC-07, client-api 13: subscriptions come back by themselves, and events in their order", async () => {
    const one = await broker();
    const [alice, bob] = await Promise.all([connected(one.url), connected(one.url, "bob")]);
    await subscribed(bob, TOPIC);
    const heard = told(bob, "connecting", "connect", "disconnect", "ready", "reconnect", "failed");
    const back = [event(bob, "reconnect"), event(alice, "reconnect")];
    await one.restart();
    await Promise.all(back);
    expect(heard).toEqual(["disconnect", "connect", "ready", "reconnect"]);
    const got = new Promise((resolve) => bob.on(TOPIC, resolve));
    await alice.publish(TOPIC, "after");
    expect(await got).toBe("after");
  });

  test("the ready event says what was made again, and what may be missed", async () => {
    const one = await broker();
    const bob = await connected(one.url, "bob");
    await subscribed(bob, TOPIC);
    const ready = event(bob, "ready");
    await one.restart();
    const [report] = (await ready) as [{ resubscribed: string[]; gaps: { topic: string; reason: string }[] }];
    expect(report.resubscribed).toEqual([TOPIC]);
    expect(report.gaps).toMatchObject([{ topic: TOPIC, reason: "epoch" }]);
  });

  test("API-067: a broker that stops answering is noticed", async () => {
    const one = await broker();
    const alice = await connected(one.url, "alice", { heartbeatInterval: 100, heartbeatTimeout: 200 });
    const lost = event(alice, "disconnect");
    one.freeze();
    await lost;
    expect(alice.status).toBe("reconnecting");
    const back = event(alice, "reconnect");
    one.thaw();
    await back;
  });
});

describe("closing", () => {
  test("12.2: disconnect is done when it returns, and told once", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const reasons: string[] = [];
    alice.on("disconnect", (reason) => reasons.push(reason));
    alice.disconnect();
    expect([alice.status, reasons]).toEqual(["disconnected", ["Client disconnect"]]);
    alice.disconnect();
    expect(reasons).toHaveLength(1);
  });

  test("12.4: nothing is handed over after disconnect", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    await subscribed(bob, TOPIC);
    let after = 0;
    bob.on(TOPIC, (n) => {
      if (!bob.connected) after += 1;
      if (n === 3) bob.disconnect();
    });
    const gone = event(bob, "disconnect");
    for (let n = 0; n < 20; n += 1) alice.emit(TOPIC, n);
    await gone;
    await alice.flush();
    expect(after).toBe(0);
  });

  test("what was subscribed is subscribed again by a later connect", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    await subscribed(bob, TOPIC);
    bob.disconnect();
    const ready = event(bob, "ready");
    await bob.connect();
    await ready;
    const got = new Promise((resolve) => bob.on(TOPIC, resolve));
    await alice.publish(TOPIC, "again");
    expect(await got).toBe("again");
  });

  test("close waits for what was published, and is shared", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const answers: unknown[] = [];
    for (let n = 0; n < 100; n += 1) alice.emit(TOPIC, n, (error) => answers.push(error));
    await Promise.all([alice.close(), alice.close()]);
    expect(answers).toEqual(Array(100).fill(null));
    expect(alice.state).toBe("closed");
    await alice.close();
  });

  test("waitForConnected gives up in time, and on a signal", async () => {
    const one = await broker();
    await one.kill();
    const alice = client(one.url);
    await expect(alice.waitForConnected({ timeoutMs: 10 })).rejects.toMatchObject({ code: "connect_timeout" });
    const abort = new AbortController();
    const waiting = alice.waitForConnected({ signal: abort.signal });
    abort.abort(new Error("enough"));
    await expect(waiting).rejects.toThrow("enough");
  });
});
