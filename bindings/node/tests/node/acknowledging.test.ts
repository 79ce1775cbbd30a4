/** Which messages are acknowledged, seen from the broker. */

import { expect, test } from "vitest";
import { Scripted } from "../kit/scripted.js";
import { connected, subscribed } from "../kit/under-test.js";

const TOPIC = "demo/general/messages";

test("afterHandler: what nobody handles is not acknowledged, for another to handle", async () => {
  const scripted = await Scripted.open();
  const acknowledged: unknown[] = [];
  const done = new Promise<void>((resolve) => {
    scripted.rules.ack = (_link, frame) => {
      acknowledged.push(frame.msgId);
      resolve();
    };
    scripted.rules.batchAck = (_link, frame) => {
      acknowledged.push(...(frame.msgIds as unknown[]));
      resolve();
    };
  });
  const alice = await connected(scripted.url, "alice", { ackMode: "afterHandler" });
  await subscribed(alice, TOPIC);
  const link = await scripted.link();
  const message = (id: string) => link.send({ type: "message", topic: TOPIC, data: id, msgId: id, requiresAck: true });
  message("m-0");
  await alice.publish("demo/general/other", 1); // its answer comes behind the message
  alice.on(TOPIC, () => {});
  message("m-1");
  await done;
  expect(acknowledged).toEqual(["m-1"]);
});
