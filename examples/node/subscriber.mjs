// bob waits for messages. Start it first, then publisher.mjs.
import { NoLag } from "@nolag/core-rs";

const bob = NoLag("dev-token-bob", { url: process.env.NOLAG_URL ?? "ws://localhost:8080/ws" });

bob.on("error", (error) => console.error("bob:", error.message));
bob.on("demo/general/messages", (data) => console.log("bob got:", data));

await bob.connect();
bob.subscribe("demo/general/messages", (error) => {
  console.log(error ? `bob is not subscribed: ${error.message}` : "bob is subscribed");
});
