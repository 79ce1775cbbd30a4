import { describe, expect, test } from "vitest";
import { broker, client, collected, connected, event, given, subscribed } from "../kit/under-test.js";

const TOPIC = "demo/general/messages";

describe("publishing", () => {
  test("a receipt tells what became of it", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const receipt = await alice.publish(TOPIC, { text: "hi" });
    expect(receipt).toMatchObject({ topic: TOPIC, qos: 1, effectiveQos: 1, outcome: "accepted", attempts: 1 });
    expect(await alice.publish(TOPIC, 1, { qos: 0 })).toMatchObject({ qos: 0, outcome: "written" });
    const again = { msgRef: "once-only" };
    await alice.publish(TOPIC, 1, again);
    expect(await alice.publish(TOPIC, 1, again)).toMatchObject({ outcome: "duplicate" });
  });

  test("emit's callback is called once, with null or the broker's refusal", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const answer = (topic: string) => new Promise((resolve) => alice.emit(topic, 1, resolve));
    expect(await answer(TOPIC)).toBe(null);
    const errors: Error[] = [];
    alice.on("error", (error) => errors.push(error));
    const told = event(alice, "error");
    const refused = await answer("other/room/topic");
    expect(refused).toMatchObject({
      name: "ServerError",
      code: "unknown_topic",
      serverCode: 42940,
      topic: "other/room/topic",
    });
    // API-095: the callback, and the event, once each.
    await told;
    await alice.publish(TOPIC, 1);
    expect(errors).toHaveLength(1);
  });

  test("before connect: Not connected, at once; publish rejects", async () => {
    const { url } = await broker();
    const alice = client(url);
    const { NotConnectedError } = given().nolag;
    let answer: unknown;
    alice.emit(TOPIC, 1, (error) => {
      answer = error;
    });
    expect(answer).toBeInstanceOf(NotConnectedError);
    expect((answer as Error).message).toBe("Not connected");
    await expect(alice.publish(TOPIC, 1)).rejects.toBeInstanceOf(NotConnectedError);
    await alice.connect();
    alice.disconnect();
    await expect(alice.publish(TOPIC, 1)).rejects.toMatchObject({ name: "ClosedError", code: "closed" });
  });

  test("what MessagePack cannot hold is refused at the call, and the client goes on", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    const { EncodeError, Extension } = given().nolag;
    const cyclic: Record<string, unknown> = {};
    cyclic.self = cyclic;
    const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)]);
    const bad = [
      () => {},
      Symbol("s"),
      { f() {} },
      [Symbol("s")],
      cyclic,
      Number.NaN,
      { x: Number.POSITIVE_INFINITY },
      2n ** 64n,
      -(2n ** 63n) - 1n,
      new Set([1]),
      Promise.resolve(1),
      new Date(Number.NaN),
      new Extension(200, new Uint8Array()),
      deep(129),
    ];
    for (const value of bad) {
      await expect(alice.publish(TOPIC, value)).rejects.toBeInstanceOf(EncodeError);
      const told = event(alice, "error");
      const answer = new Promise((resolve) => alice.emit(TOPIC, value, resolve));
      expect(await answer).toBeInstanceOf(EncodeError);
      expect((await told)[0]).toBe(await answer);
    }
    await alice.publish(TOPIC, deep(128));
  });

  test("a payload over the limit is refused at once", async () => {
    const { url } = await broker();
    const alice = await connected(url, "alice", { maxMessageSize: 1_000 });
    await expect(alice.publish(TOPIC, "x".repeat(2_000))).rejects.toMatchObject({ code: "message_too_large" });
  });

  test("unfit options of a call are refused by name", async () => {
    const { url } = await broker();
    const alice = await connected(url);
    await expect(alice.publish(TOPIC, 1, { qos: 7 as never })).rejects.toThrow("qos: 0, 1 or 2 is expected");
    expect(() => alice.emit(TOPIC, 1, { retian: true } as never)).toThrow(/no option "retian"/);
    await expect(alice.publish(TOPIC, 1, { filter: "a/b" })).rejects.toMatchObject({ code: "invalid_filter" });
    await expect(alice.publish("a/+/b", 1)).rejects.toMatchObject({ code: "invalid_topic" });
    await expect(alice.publish(7 as never, 1)).rejects.toMatchObject({ code: "bad_option" });
  });
});

describe("values", () => {
  test("point 8: they arrive as they were, integers never rounded", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    const { Extension } = given().nolag;
    const values: [sent: unknown, got?: unknown][] = [
      [null],
      [true],
      ["text"],
      [""],
      ["ü €😀"],
      ["\ud800", "\ufffd"],
      [0],
      [-1],
      [5_000_000_000],
      [-5_000_000_000],
      [Number.MAX_SAFE_INTEGER],
      [2n ** 60n],
      [-(2n ** 63n)],
      [7n, 7],
      [1.5],
      [1e300],
      [undefined, null],
      [
        [undefined, 1],
        [null, 1],
      ],
      [{ a: undefined, b: [] }, { b: [] }],
      [new Uint8Array([1, 2, 3])],
      [new Float32Array([1]), new Uint8Array(new Float32Array([1]).buffer)],
      [new Date(1_700_000_000_123)],
      [
        new Map<unknown, unknown>([
          ["a", 1],
          [2, new Map()],
        ]),
        { a: 1, 2: {} },
      ],
      [new Extension(0x62, new Uint8Array([1, 2]))],
      [{ deep: [{ er: new Extension(-5, new Uint8Array([9])) }] }],
      [Object.assign(Object.create(null), { a: 1 }), { a: 1 }],
    ];
    const got = collected(bob, TOPIC, values.length);
    await subscribed(bob, TOPIC);
    for (const [sent] of values) await alice.publish(TOPIC, sent);
    const plain = (value: unknown): unknown => (value instanceof Uint8Array ? [...value] : value);
    expect((await got).map(plain)).toEqual(values.map(([sent, expected = sent]) => plain(expected)));
  });

  test("later changes of a value that was emitted have no effect", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    const got = collected(bob, TOPIC, 1);
    await subscribed(bob, TOPIC);
    const value = { n: 1, bytes: new Uint8Array([1]) };
    alice.emit(TOPIC, value);
    value.n = 2;
    value.bytes[0] = 2;
    const [first] = (await got) as [{ n: number; bytes: Uint8Array }];
    expect([first.n, [...first.bytes]]).toEqual([1, [1]]);
  });
});

describe("without a connection", () => {
  test("API-045: what is emitted while the broker is away arrives, in order", async () => {
    const one = await broker();
    const alice = await connected(one.url);
    const lost = event(alice, "disconnect");
    await one.kill();
    await lost;
    const answers = Array.from({ length: 50 }, (_, n) => alice.publish(TOPIC, n));
    await one.start();
    const bob = await connected(one.url, "bob");
    const got = collected(bob, TOPIC, 50);
    await subscribed(bob, TOPIC, { history: 50 });
    const receipts = await Promise.all(answers);
    expect(receipts.every(({ outcome }) => outcome === "accepted")).toBe(true);
    const all = await got;
    expect(new Set(all).size).toBe(50);
  });

  test("a full queue refuses the new one; quality 0 is dropped, both with a typed error", async () => {
    const one = await broker();
    const alice = await connected(one.url, "alice", { offlineQueue: { maxMessages: 2 } });
    const lost = event(alice, "disconnect");
    await one.kill();
    await lost;
    const kept = [alice.publish(TOPIC, 1), alice.publish(TOPIC, 2)];
    await expect(alice.publish(TOPIC, 3)).rejects.toMatchObject({ name: "QueueError", code: "queue_full" });
    await expect(alice.publish(TOPIC, 4, { qos: 0 })).rejects.toMatchObject({ code: "not_connected" });
    alice.disconnect();
    for (const one of kept) await expect(one).rejects.toMatchObject({ name: "ClosedError" });
  });

  test("API-078: an abort withdraws what is queued", async () => {
    const one = await broker();
    const alice = await connected(one.url);
    const lost = event(alice, "disconnect");
    await one.kill();
    await lost;
    const abort = new AbortController();
    const publish = alice.publish(TOPIC, "withdrawn", { signal: abort.signal });
    abort.abort(new Error("never mind"));
    await expect(publish).rejects.toThrow("never mind");
    await one.start();
    await alice.waitForConnected();
    await alice.flush();
    expect(alice.stats().published).toBe(0);
  });
});

describe("a burst", () => {
  test("more emits than the queue has places wait instead of failing, and drain tells", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    const errors: Error[] = [];
    alice.on("error", (error) => errors.push(error));
    const got = collected(bob, TOPIC, 5_000);
    await subscribed(bob, TOPIC);
    const drained = event(alice, "drain");
    for (let n = 0; n < 5_000; n += 1) alice.emit(TOPIC, n);
    expect(alice.bufferedAmount).toBeGreaterThan(0);
    await drained;
    expect(await got).toEqual(Array.from({ length: 5_000 }, (_, n) => n));
    expect(errors).toEqual([]);
    await alice.flush();
    expect(alice.bufferedAmount).toBe(0);
  });

  test("beyond the queue's bytes an emit fails, told", async () => {
    const { url } = await broker();
    const alice = await connected(url, "alice", { offlineQueue: { maxMessages: 1, maxBytes: 10_000 } });
    const answers = Array.from(
      { length: 20 },
      () => new Promise<Error | null>((resolve) => alice.emit(TOPIC, "x".repeat(1_000), resolve)),
    );
    const failed = (await Promise.all(answers)).filter((error) => error !== null);
    expect(failed.length).toBeGreaterThan(5);
    expect(failed[0]).toMatchObject({ name: "QueueError", code: "queue_full" });
  });
});
