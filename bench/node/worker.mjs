// One client at one kind of work, in a process of its own: `cargo xtask bench node` starts it. It prints JSON objects with
// numbers, one a line. The client is ours, or plain: what a user writes with ws and @msgpack/msgpack.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { cpuUsage } from "node:process";
import { parseArgs } from "node:util";

const TOKEN = "dev-token-alice";
/** Of every payload. */
const BYTES = 100;
/** Publishes that wait for their answer at a time. */
const WINDOW = 64;
/** Round trips that are not counted. */
const WARM = 50;
/** Connections opened at a time. */
const OPENING = 50;

// The tools of the package's tests have what the plain client needs.
const { resolve } = createRequire(new URL("../../bindings/node/package.json", import.meta.url));

const { values: args, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    client: { type: "string", default: "ours" },
    url: { type: "string", default: "" },
    topic: { type: "string", default: "" },
    count: { type: "string", default: "1" },
  },
});
const { url, topic } = args;
const count = Number(args.count);

const say = (numbers) => console.log(JSON.stringify(numbers));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const cpuMs = () => {
  const { user, system } = cpuUsage();
  return (user + system) / 1e3;
};

/** Our client, as far as the works need it. */
async function ours() {
  const { NoLag } = await import("../../bindings/node/dist/index.mjs");
  const client = NoLag(TOKEN, { url });
  await client.connect();
  return {
    on: (of, handler) => client.on(of, handler),
    subscribe: (of) => new Promise((done, fail) => client.subscribe(of, (error) => (error ? fail(error) : done()))),
    emit: (to, data, callback) => client.emit(to, data, callback),
    hasRoom: () => client.bufferedAmount < 1 << 20,
    drained: () => new Promise((done) => client.once("drain", done)),
    end: () => client.disconnect(),
  };
}

/** The plain one: it connects once, acknowledges what asks for it, and matches answers. */
async function plain() {
  const { default: WebSocket } = await import(resolve("ws"));
  const { decode, encode } = await import(resolve("@msgpack/msgpack"));
  const socket = new WebSocket(url);
  const handlers = new Map();
  const waiting = new Map();
  let references = 0;
  const acks = [];
  const send = (frame) => socket.send(encode(frame));
  const settle = (key) => {
    waiting.get(key)?.(null);
    waiting.delete(key);
  };
  const acknowledge = () => {
    while (acks.length > 0) send({ type: "batchAck", msgIds: acks.splice(0, 1_000) });
  };
  const opened = new Promise((done) => waiting.set("auth", done));
  socket.on("open", () => send({ type: "auth", token: TOKEN, protocolVersion: 2 }));
  socket.on("message", (bytes) => {
    if (bytes.length === 0) return;
    const frame = decode(bytes);
    if (frame.type === "message") {
      const { data, topic: of, ...meta } = frame;
      handlers.get(of)?.(data, meta);
      if (frame.requiresAck) {
        if (acks.push(frame.msgId) === 1) setImmediate(acknowledge);
      }
    } else if (frame.type === "published") settle(frame.msgRef);
    else if (frame.type === "subscribed") settle(frame.topic);
    else if (frame.type === "auth") settle("auth");
  });
  await opened;
  return {
    on: (of, handler) => handlers.set(of, handler),
    subscribe: (of) =>
      new Promise((done) => {
        waiting.set(of, done);
        send({ type: "subscribe", topic: of });
      }),
    emit: (to, data, callback) => {
      const msgRef = String(++references);
      if (callback) waiting.set(msgRef, callback);
      send({ type: "publish", topic: to, data, qos: 1, msgRef });
    },
    hasRoom: () => socket.bufferedAmount < 1 << 20,
    drained: () => new Promise((done) => setImmediate(done)),
    end: () => socket.close(),
  };
}

const open = args.client === "plain" ? plain : ours;

const WORKS = {
  async receive() {
    const client = await open();
    let handled = 0;
    let began = 0;
    let cpu = 0;
    await new Promise((done) => {
      client.on(topic, () => {
        if (handled === 0) [began, cpu] = [performance.now(), cpuMs()];
        handled += 1;
        if (handled === count) done();
      });
      client.subscribe(topic);
    });
    const [spent, used] = [performance.now() - began, cpuMs() - cpu];
    await sleep(200); // what is acknowledged at all has been by then
    client.end();
    say({ per_s: (handled / spent) * 1e3, cpu_us: (used * 1e3) / handled, handled });
  },

  async emit() {
    const client = await open();
    const end = `${topic}/end`;
    const arrived = new Promise((done) => client.on(end, done));
    await client.subscribe(end);
    const data = "x".repeat(BYTES);
    const [began, cpu] = [performance.now(), cpuMs()];
    for (let n = 0; n < count; n += 1) {
      client.emit(`${topic}/sink`, data);
      // As a program does that fills no memory: it looks from time to time, and lets the socket write.
      if (n % 256 === 255) {
        if (!client.hasRoom()) await client.drained();
        else await new Promise((done) => setImmediate(done));
      }
    }
    client.emit(end, "end");
    await arrived;
    const [spent, used] = [performance.now() - began, cpuMs() - cpu];
    client.end();
    say({ per_s: (count / spent) * 1e3, cpu_us: (used * 1e3) / count, errors: 0 });
  },

  async "emit-awaited"() {
    const client = await open();
    const data = "x".repeat(BYTES);
    let errors = 0;
    let sent = 0;
    let answered = 0;
    const [began, cpu] = [performance.now(), cpuMs()];
    await new Promise((done) => {
      const next = () => {
        if (sent === count) return;
        sent += 1;
        client.emit(`${topic}/sink`, data, (error) => {
          if (error) errors += 1;
          answered += 1;
          if (answered === count) done();
          else next();
        });
      };
      for (let n = 0; n < WINDOW; n += 1) next();
    });
    const [spent, used] = [performance.now() - began, cpuMs() - cpu];
    client.end();
    say({ per_s: (count / spent) * 1e3, cpu_us: (used * 1e3) / count, errors });
  },

  async echo() {
    const client = await open();
    let arrived = () => {};
    client.on(topic, () => arrived());
    await client.subscribe(topic);
    const data = "x".repeat(BYTES);
    const trips = [];
    for (let n = 0; n < count + WARM; n += 1) {
      const back = new Promise((done) => {
        arrived = done;
      });
      const began = performance.now();
      client.emit(topic, data);
      await back;
      if (n >= WARM) trips.push(performance.now() - began);
    }
    client.end();
    trips.sort((a, b) => a - b);
    const percentile = (of) => trips[Math.floor(((trips.length - 1) * of) / 100)];
    say({ p50_ms: percentile(50), p99_ms: percentile(99) });
  },

  async connections() {
    const rss = async () => {
      await sleep(500);
      globalThis.gc?.();
      return Number(/VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))?.[1]);
    };
    const before = await rss();
    const began = performance.now();
    const first = await open();
    const arrived = new Promise((done) => first.on(`${topic}/first`, done));
    await first.subscribe(`${topic}/first`);
    first.emit(`${topic}/first`, "x");
    await arrived;
    const first_ms = performance.now() - began;
    const one = await rss();
    const clients = [];
    while (clients.length < count) {
      const more = Math.min(OPENING, count - clients.length);
      clients.push(...(await Promise.all(Array.from({ length: more }, open))));
    }
    await Promise.all(clients.map((client) => client.subscribe(topic)));
    const all = await rss();
    say({ first_ms, first_rss_kb: one - before, further_rss_kb: (all - one) / count });
    for (const client of [first, ...clients]) client.end();
  },
};

await WORKS[positionals[0]]();
