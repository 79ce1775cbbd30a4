import { describe, expect, test } from "vitest";
import { broker, collected, connected, event, given, subscribed } from "../kit/under-test.js";

const TOPIC = "demo/general/messages";

async function pair(options = {}, settings = {}) {
  const one = await broker(settings);
  const [alice, bob] = await Promise.all([connected(one.url), connected(one.url, "bob", options)]);
  return { one, alice, bob };
}

describe("handlers", () => {
  test("API-053: exact, then any, then iterators; each in the order of registration", async () => {
    const { alice, bob } = await pair();
    const calls: string[] = [];
    bob.on(TOPIC, () => calls.push("exact 1"));
    bob.onAny((topic) => calls.push(`any ${topic}`));
    bob.on(TOPIC, () => calls.push("exact 2"));
    const reader = bob.subscription(TOPIC);
    await reader.ready;
    const next = reader.next().then(() => calls.push("iterator"));
    await alice.publish(TOPIC, 1);
    await next;
    expect(calls).toEqual(["exact 1", "exact 2", `any ${TOPIC}`, "iterator"]);
  });

  test("API-054: one that throws, or rejects, does not stop others; one error event each", async () => {
    const { alice, bob } = await pair();
    const errors: { code: string; cause?: unknown; topic?: string | undefined }[] = [];
    const both = new Promise<void>((resolve) => bob.on("error", (error) => errors.push(error) === 2 && resolve()));
    bob.on(TOPIC, () => {
      throw new Error("one");
    });
    bob.on(TOPIC, async () => Promise.reject(new Error("two")));
    const got = collected(bob, TOPIC, 1);
    await subscribed(bob, TOPIC);
    await alice.publish(TOPIC, 1);
    expect(await got).toEqual([1]);
    await both;
    expect(errors.map(({ code, cause, topic }) => [code, (cause as Error).message, topic])).toEqual([
      ["handler", "one", TOPIC],
      ["handler", "two", TOPIC],
    ]);
    expect(bob.stats().handler_errors).toBe(2);
  });

  test("API-055: changes count from the next message on; the same function is called once; once and off", async () => {
    const { alice, bob } = await pair();
    const calls: string[] = [];
    const twice = () => calls.push("twice");
    bob.on(TOPIC, twice).on(TOPIC, twice);
    bob.once(TOPIC, () => calls.push("once"));
    bob.on(TOPIC, function adds() {
      bob.off(TOPIC, adds);
      bob.on(TOPIC, () => calls.push("added"));
    });
    const got = collected(bob, TOPIC, 2);
    await subscribed(bob, TOPIC);
    await alice.publish(TOPIC, 1);
    await alice.publish(TOPIC, 2);
    await got;
    expect(calls).toEqual(["twice", "once", "twice", "added"]);
    bob.off(TOPIC);
    const any = new Promise((resolve) => bob.on("*", (topic, data) => resolve([topic, data])));
    await alice.publish(TOPIC, 3);
    expect(await any).toEqual([TOPIC, 3]);
    expect(calls).toHaveLength(4);
  });

  test("a message whose handler disconnects does not come again", async () => {
    const { alice, bob } = await pair();
    const got: unknown[] = [];
    bob.once(TOPIC, () => bob.disconnect());
    bob.on(TOPIC, (data) => got.push(data));
    await subscribed(bob, TOPIC);
    const gone = event(bob, "disconnect");
    await alice.publish(TOPIC, 1);
    await gone;
    await alice.publish(TOPIC, 2);
    const second = collected(bob, TOPIC, 1);
    await bob.connect();
    expect(await second).toEqual([2]);
    expect(got).toEqual([1, 2]);
  });

  test("8.7: what comes beside a payload", async () => {
    const { alice, bob } = await pair();
    const got = new Promise<[unknown, object]>((resolve) => bob.on(TOPIC, (data, meta) => resolve([data, meta])));
    await subscribed(bob, TOPIC, { filters: ["red"] });
    await alice.publish(TOPIC, 1, { filter: "red" });
    const [, meta] = await got;
    expect(meta).toMatchObject({ topic: TOPIC, from: "alice", filter: "red", isReplay: false, retained: false });
    expect(JSON.parse(JSON.stringify(meta))).toMatchObject({ from: "alice" });
  });

  test("API-057: afterHandler awaits handlers, one message of a topic after another", async () => {
    const { alice, bob } = await pair({ ackMode: "afterHandler" });
    let running = 0;
    const order: number[] = [];
    const done = new Promise<void>((resolve) =>
      bob.on(TOPIC, async (n) => {
        running += 1;
        expect(running).toBe(1);
        await new Promise((next) => setTimeout(next, 1));
        order.push(n);
        running -= 1;
        if (n === 9) resolve();
      }),
    );
    await subscribed(bob, TOPIC);
    for (let n = 0; n < 10; n += 1) alice.emit(TOPIC, n);
    await done;
    expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });
});

describe("subscribing", () => {
  test("a refusal reaches the callback; Not connected comes at once", async () => {
    const { one, alice } = await pair();
    await expect(subscribed(alice, "other/room/x")).rejects.toMatchObject({ code: "unknown_topic" });
    await expect(subscribed(alice, "a/#/b")).rejects.toMatchObject({ code: "invalid_topic" });
    const { NoLag } = given().nolag;
    let answer: unknown;
    NoLag("t", { url: one.url }).subscribe(TOPIC, (error) => {
      answer = error;
    });
    expect(answer).toMatchObject({ code: "not_connected" });
    expect(() => alice.subscribe(TOPIC, { history: 0 })).toThrow("history: a whole number from 1 to 1000 is expected");
  });

  test("filters are replaced, added and removed, and survive a restart of the broker", async () => {
    const { one, alice, bob } = await pair();
    const change = (verb: "setFilters" | "addFilters" | "removeFilters", filters: string[]) =>
      new Promise((resolve) => bob[verb](TOPIC, filters, resolve));
    await subscribed(bob, TOPIC, { filters: ["a"] });
    expect(await change("addFilters", ["b"])).toBe(null);
    expect(await change("removeFilters", ["a"])).toBe(null);
    const back = [event(bob, "reconnect"), event(alice, "reconnect")];
    await one.restart();
    await Promise.all(back);
    const got: unknown[] = [];
    bob.on(TOPIC, (data) => got.push(data));
    await alice.publish(TOPIC, "a", { filter: "a" });
    await alice.publish(TOPIC, "b", { filter: "b" });
    const last = new Promise<void>((resolve) => bob.on(TOPIC, (data) => data === "all" && resolve()));
    expect(await change("setFilters", [])).toBe(null);
    await alice.publish(TOPIC, "all");
    await last;
    expect(got).toEqual(["b", "all"]);
  });

  test("groups share, rooms prefix, unsubscribe ends", async () => {
    const { alice, bob } = await pair();
    const room = bob.setApp("demo").setRoom("kitchen");
    const got: unknown[] = [];
    const first = new Promise((resolve) => room.once("orders", resolve));
    room.on("orders", (data) => got.push(data));
    await new Promise((resolve) => room.subscribe("orders", { loadBalance: true, loadBalanceGroup: "cooks" }, resolve));
    expect(room.prefix).toBe("demo/kitchen");
    await alice.publish("demo/kitchen/orders", 1);
    await first;
    await new Promise((resolve) => room.unsubscribe("orders", resolve));
    await alice.publish("demo/kitchen/orders", 2);
    await bob.publish(TOPIC, 0);
    expect(got).toEqual([1]);
    expect(() => room.on("a/b", () => {})).toThrow("a name contains no `/`");
    expect(() => bob.setApp("")).toThrow("it is empty");
  });
});

describe("iterating", () => {
  test("messages come in order, and leaving the loop unsubscribes", async () => {
    const { alice, bob } = await pair();
    const reader = bob.messages<number>(TOPIC);
    expect(reader.state).toBe("pending");
    await reader.ready;
    expect(reader.state).toBe("active");
    for (let n = 0; n < 10; n += 1) alice.emit(TOPIC, n);
    const got: number[] = [];
    for await (const { data, topic, meta } of reader) {
      expect([topic, meta.from]).toEqual([TOPIC, "alice"]);
      got.push(data);
      if (data === 9) break;
    }
    expect(got).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    expect(reader.state).toBe("closed");
    expect(bob.stats().subscriptions).toBe(0);
  });

  test("API-079: with a handler for the topic it stays subscribed", async () => {
    const { alice, bob } = await pair();
    const got = collected(bob, TOPIC, 2);
    await subscribed(bob, TOPIC);
    const reader = bob.subscription(TOPIC);
    await reader.ready;
    const next = reader.next();
    await alice.publish(TOPIC, 1);
    await next;
    await reader.unsubscribe();
    await alice.publish(TOPIC, 2);
    expect(await got).toEqual([1, 2]);
  });

  test("what is subscribed before connect is subscribed then; a refusal ends the loop with its error", async () => {
    const one = await broker();
    const { NoLag } = given().nolag;
    const bob = NoLag("dev-token-bob", { url: one.url });
    const [good, bad] = [bob.subscription(TOPIC), bob.subscription("other/room/x")];
    await bob.connect();
    await good.ready;
    await expect(bad.ready).rejects.toMatchObject({ code: "unknown_topic" });
    expect(bad.state).toBe("refused");
    await expect(bad.next()).rejects.toMatchObject({ code: "unknown_topic" });
    expect(await bad.next()).toEqual({ done: true, value: undefined });
    const waiting = good.next();
    bob.disconnect();
    expect(await waiting).toEqual({ done: true, value: undefined });
    expect(() => bob.subscription(TOPIC)).toThrow("closed");
  });

  test("a signal ends it, with its reason", async () => {
    const { bob } = await pair();
    const abort = new AbortController();
    const reader = bob.subscription(TOPIC, { signal: abort.signal });
    await reader.ready;
    const waiting = reader.next();
    abort.abort(new Error("enough"));
    await expect(waiting).rejects.toThrow("enough");
    expect((await reader.next()).done).toBe(true);
  });

  test("API-076: a slow reader pauses the client, and nothing is lost", async () => {
    const { alice, bob } = await pair();
    const reader = bob.subscription<number>(TOPIC, { bufferSize: 4 });
    await reader.ready;
    for (let n = 0; n < 3_000; n += 1) alice.emit(TOPIC, n);
    await alice.flush();
    const got: number[] = [];
    for await (const { data } of reader) {
      got.push(data);
      if (data === 2_999) break;
    }
    expect(got).toEqual(Array.from({ length: 3_000 }, (_, n) => n));
  });

  test("API-077: what a slow reader drops is told exactly", async () => {
    const { alice, bob } = await pair();
    const newest = bob.subscription<number>(TOPIC, { bufferSize: 4, overflow: "dropOldest" });
    await newest.ready;
    const all = collected(bob, TOPIC, 100);
    bob.onAny(() => {});
    const first = newest.next();
    for (let n = 0; n < 100; n += 1) alice.emit(TOPIC, n);
    await all;
    expect((await first).value).toMatchObject({ data: 0 });
    const told = event(bob, "overflow");
    const kept: number[] = [];
    for (let n = 0; n < 4; n += 1) kept.push((await newest.next()).value?.data as number);
    expect(kept).toEqual([96, 97, 98, 99]);
    void newest.next();
    expect(await told).toEqual([{ topic: TOPIC, dropped: 95 }]);
  });

  test("API-101: a new client continues after a stored position", async () => {
    const { one, alice, bob } = await pair();
    const reader = bob.subscription(TOPIC);
    await reader.ready;
    await alice.publish(TOPIC, 1);
    expect((await reader.next()).value?.data).toBe(1);
    await bob.close();
    const { position } = reader;
    expect(position).toMatchObject({ epoch: expect.any(String), seq: expect.any(Number) });
    await alice.publish(TOPIC, 2);
    const again = await connected(one.url, "bob");
    const later = again.subscription(TOPIC, { resumeFrom: position as never });
    await later.ready;
    const next = (await later.next()).value;
    expect([next?.data, next?.meta.isReplay]).toEqual([2, true]);
  });

  test("an idle subscription beside a handler does not hold the client up", async () => {
    const { alice, bob } = await pair();
    const got = collected(bob, TOPIC, 2_000);
    const idle = bob.subscription(TOPIC);
    await idle.ready;
    for (let n = 0; n < 2_000; n += 1) alice.emit(TOPIC, n);
    expect(await got).toHaveLength(2_000);
  });
});
