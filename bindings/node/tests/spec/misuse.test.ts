import { describe, expect, test } from "vitest";
import { broker, client, connected, event, given, subscribed } from "../kit/under-test.js";

const TOPIC = "demo/general/messages";
const QUIET = { debug() {}, warn() {}, error() {} };
const REFUSED = "elsewhere/general/messages";

/** What a call throws or rejects with. */
async function failure(call: () => unknown): Promise<unknown> {
  try {
    await call();
  } catch (error) {
    return error;
  }
  return undefined;
}

describe("arguments of a wrong type", () => {
  test("are a ConfigError at the call, and the client stays usable", async () => {
    const { ConfigError } = given().nolag;
    const { url } = await broker();
    const alice = await connected(url);
    const calls: [string, () => unknown][] = [
      ["a room that is a number", () => alice.setPresence({}, 5 as never)],
      ["a room that is an object", () => alice.setPresence({}, {} as never)],
      ["presence that is missing", () => alice.setPresence(undefined as never)],
      ["an id that is a number", () => alice.ack(5 as never)],
      ["ids that are no list", () => alice.batchAck("abc" as never)],
      ["a topic that is a number", () => alice.position(5 as never)],
      ["emit's callback", () => alice.emit(TOPIC, 1, {}, "text" as never)],
      ["subscribe's callback", () => alice.subscribe(TOPIC, {}, 7 as never)],
      ["connect's signal", () => alice.connect({ signal: {} as never })],
      ["publish's signal", () => alice.publish(TOPIC, 1, { signal: { aborted: false } as never })],
      ["waitForConnected's time", () => alice.waitForConnected({ timeoutMs: "1" as never })],
      ["waitForConnected's options", () => alice.waitForConnected({ timeout: 1 } as never)],
      ["flush's time", () => alice.flush({ timeoutMs: Number.NaN })],
    ];
    for (const [what, call] of calls) expect(await failure(call), what).toBeInstanceOf(ConfigError);
    expect(alice.stats().subscriptions).toBe(0);
    expect((await alice.publish(TOPIC, "still here")).outcome).toBe("accepted");
  });

  test("null for a callback is none", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const errors: unknown[] = [];
    alice.on("error", (error) => errors.push(error));
    alice.emit(TOPIC, 1, {}, null as never);
    alice.subscribe(TOPIC, {}, null as never);
    await alice.flush();
    expect(errors).toEqual([]);
  });
});

describe("callbacks that throw", () => {
  test("API-054: also where the answer is known at the call, it is an error event", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const causes: unknown[] = [];
    alice.on("error", (error) => error.code === "handler" && causes.push((error.cause as Error).message));
    const thrower = (message: string) => () => {
      throw new Error(message);
    };
    alice.emit(TOPIC, () => {}, thrower("emit"));
    alice.setPresence({ of: () => {} }, "general", thrower("presence"));
    alice.disconnect();
    alice.setPresence({}, "general", thrower("closed"));
    expect(causes).toEqual(["emit", "presence", "closed"]);
  });

  test.each([
    ["null", null],
    ["an object without a prototype", Object.create(null)],
    ["a symbol", Symbol("why")],
  ])("API-072: a token provider that throws %s has failed", async (_, thrown) => {
    const { AuthError } = given().nolag;
    const { url } = await broker();
    const provider = () => {
      throw thrown;
    };
    const alice = given().nolag.NoLag(provider, { url, initialConnect: "once", logger: QUIET });
    expect(await failure(() => alice.connect())).toBeInstanceOf(AuthError);
    alice.disconnect();
  });
});

describe("what is refused", () => {
  test("an iterator that ended so holds the topic no longer for others", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const bad = alice.subscription(TOPIC, { loadBalanceGroup: "x".repeat(400) });
    expect(await failure(() => bad.ready)).toBeInstanceOf(Error);
    const good = alice.subscription(TOPIC);
    await good.ready;
    await good.unsubscribe();
    expect(alice.stats().subscriptions).toBe(0);
  });

  test("API-095: a refused iterator is told of once", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const errors: unknown[] = [];
    alice.on("error", (error) => errors.push(error.topic));
    const reader = alice.subscription(REFUSED);
    expect(await failure(() => reader.ready)).toBeInstanceOf(given().nolag.ServerError);
    expect(reader.state).toBe("refused");
    await subscribed(alice, TOPIC); // a whole turn behind what followed the refusal
    expect(errors).toEqual([REFUSED]);
    expect(alice.stats().subscriptions).toBe(1);
  });
});

describe("waiting", () => {
  test("API-020: for a connection ends when the client gives up", async () => {
    const { url } = await broker();
    const nobody = client(url, "nobody");
    const waited = failure(() => nobody.waitForConnected());
    const refused = await failure(() => nobody.connect());
    expect(await waited).toBeInstanceOf(given().nolag.AuthError);
    expect(refused).toBeInstanceOf(given().nolag.AuthError);
  });

  test("API-008: for what happens in a lobby ends with disconnect", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const next = alice.setApp("demo").setLobby("lounge").events().next();
    const told = event(alice, "disconnected");
    alice.disconnect();
    await told;
    expect(await next).toEqual({ done: true, value: undefined });
  });
});
