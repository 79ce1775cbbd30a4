import { expect, test } from "vitest";
import { runText } from "../kit/program.js";
import { broker } from "../kit/under-test.js";

test("12.5: a program ends by itself when its client is disconnected, or was never connected", async () => {
  const { url } = await broker();
  const program = `
    NoLag("t");
    const alice = NoLag("dev-token-alice");
    await alice.connect();
    await alice.publish("demo/general/messages", 1);
    alice.disconnect();
    console.log("done");`;
  expect(await runText(program, url)).toMatchObject({ code: 0, output: "done\n" });
});

test("12.5: a connected client keeps it alive; one that is unref'd does not", async () => {
  const { url } = await broker();
  const program = (more: string) => `
    const alice = NoLag("dev-token-alice");
    await alice.connect();
    ${more}
    setTimeout(() => console.log("alive"), 300)${more === "" ? "" : ".unref()"};
    alice.on("demo/general/end", () => alice.disconnect());
    await new Promise((resolve) => alice.subscribe("demo/general/end", resolve));
    ${more === "" ? 'setTimeout(() => alice.emit("demo/general/end", 1), 400)' : ""}`;
  expect(await runText(program(""), url)).toMatchObject({ code: 0, output: "alive\n" });
  const unref = await runText(program("alice.unref();"), url);
  expect([unref.signal, unref.output]).toEqual([null, expect.not.stringContaining("alive")]);
  expect(await runText(program("alice.unref().ref();").replace(".unref();", ";"), url, [], 2_000)).toMatchObject({
    signal: "SIGKILL",
  });
});

test("an uncaught error of the application ends it as in any program, and handlers' errors do not", async () => {
  const { url } = await broker();
  const program = `
    const alice = NoLag("dev-token-alice");
    alice.on("connect", () => { throw new Error("in a handler"); });
    alice.on("error", (error) => { console.log(error.code, error.cause.message); alice.disconnect(); });
    await alice.connect();`;
  expect(await runText(program, url)).toMatchObject({ code: 0, output: "handler in a handler\n" });
});

test("API-075, API-096: debug prints states and frame types, never payloads or tokens", async () => {
  const { url } = await broker();
  const program = `
    const alice = NoLag("dev-token-alice", { debug: true });
    await alice.connect();
    await alice.publish("demo/general/messages", "the-payload");
    alice.disconnect();`;
  const { output } = await runText(program, url);
  expect(output).toMatch(/→ publish, \d+ bytes/);
  expect(output).toMatch(/authenticating → connected/);
  expect(output).not.toMatch(/dev-token|the-payload/);
});

test("workers have clients of their own, and may be terminated under load", async () => {
  const { url } = await broker();
  const program = `
    import { Worker, isMainThread } from "node:worker_threads";
    const topic = "demo/general/messages";
    if (isMainThread) {
      for (let round = 0; round < 5; round += 1) {
        const workers = Array.from({ length: 4 }, () => new Worker(new URL(import.meta.url)));
        await Promise.all(workers.map((worker) => new Promise((resolve) => worker.once("message", resolve))));
        await Promise.all(workers.map((worker) => worker.terminate()));
      }
      const alice = NoLag("dev-token-alice");
      await alice.connect();
      console.log((await alice.publish(topic, 1)).outcome);
      alice.disconnect();
    } else {
      const { parentPort } = await import("node:worker_threads");
      const bob = NoLag("dev-token-bob");
      await bob.connect();
      let seen = 0;
      bob.on(topic, () => { seen += 1; if (seen === 100) parentPort.postMessage("busy"); });
      await new Promise((resolve) => bob.subscribe(topic, resolve));
      const flood = () => { for (let n = 0; n < 50; n += 1) bob.emit(topic, n); setImmediate(flood); };
      flood();
    }`;
  expect(await runText(program, url, [], 60_000)).toMatchObject({ code: 0, output: "accepted\n" });
}, 70_000);

test("many clients, made and dropped, leave nothing behind", async () => {
  const { url } = await broker();
  const program = `
    const round = async () => {
      const clients = Array.from({ length: 50 }, (_, n) => NoLag(n % 2 ? "dev-token-alice" : "dev-token-bob"));
      await Promise.all(clients.map((client) => client.connect()));
      await Promise.all(clients.map((client) => client.publish("demo/general/messages", "x".repeat(1_000))));
      for (const client of clients) client.disconnect();
      await new Promise((resolve) => setTimeout(resolve, 20));
      gc();
    };
    for (let n = 0; n < 4; n += 1) await round();
    const before = process.memoryUsage.rss();
    for (let n = 0; n < 12; n += 1) await round();
    console.log(Math.round((process.memoryUsage.rss() - before) / 1024 / 600));`;
  const { code, output } = await runText(program, url, ["--expose-gc"], 60_000);
  expect(code).toBe(0);
  // Clients of a process take some kilobytes each while they live; gone, they take less than one.
  expect(Number(output)).toBeLessThan(10);
}, 70_000);

test("calls from within handlers, and garbage collection at any time, do no harm", async () => {
  const { url } = await broker();
  const program = `
    const topic = "demo/general/messages";
    const alice = NoLag("dev-token-alice");
    await alice.connect();
    let got = 0;
    alice.on(topic, (n) => {
      got += 1;
      gc();
      if (n < 200) alice.emit(topic, n + 1, () => gc());
      else alice.unsubscribe(topic, () => { console.log(got); alice.disconnect(); });
    });
    alice.subscribe(topic, () => alice.emit(topic, 1));`;
  expect(await runText(program, url, ["--expose-gc"])).toMatchObject({ code: 0, output: "200\n" });
});
