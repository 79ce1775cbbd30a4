import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { expect, onTestFinished, test } from "vitest";
import { broker } from "../kit/under-test.js";

const EXAMPLES = resolve(import.meta.dirname, "../../../../examples/node");

function start(name: string, url: string): { child: ChildProcess; line: () => Promise<string> } {
  const env = { ...process.env, NOLAG_URL: url };
  const child = spawn(process.execPath, [resolve(EXAMPLES, name)], { env, stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream })[Symbol.asyncIterator]();
  return { child, line: async () => (await lines.next()).value };
}

test("API-093: the quick start prints what it promises, and its publisher exits by itself", async () => {
  const { url } = await broker();
  const subscriber = start("subscriber.mjs", url);
  expect(await subscriber.line()).toBe("bob is subscribed");
  const publisher = start("publisher.mjs", url);
  expect(await publisher.line()).toBe("alice published");
  expect(await subscriber.line()).toBe("bob got: { text: 'hello from alice' }");
  expect((await once(publisher.child, "exit"))[0]).toBe(0);
});
