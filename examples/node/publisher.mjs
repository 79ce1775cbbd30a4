// alice publishes one message, and is done.
import { NoLag } from "@nolag/core-rs";

const alice = NoLag("dev-token-alice", { url: process.env.NOLAG_URL ?? "ws://localhost:8080/ws" });

await alice.connect();
alice.emit("demo/general/messages", { text: "hello from alice" }, (error) => {
  console.log(error ? `alice could not publish: ${error.message}` : "alice published");
  alice.disconnect();
});
