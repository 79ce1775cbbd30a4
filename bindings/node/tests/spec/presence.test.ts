import { describe, expect, test } from "vitest";
import { broker, client, connected, event } from "../kit/under-test.js";

describe("presence", () => {
  test("a room's roster follows who comes, changes and goes; reads in a handler agree", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    const room = alice.setApp("demo").setRoom("general");
    const seen: string[] = [];
    for (const change of ["join", "update", "leave"] as const) {
      alice.on(`presence:${change}`, (actor) => {
        const known = room.getPresence()[actor.actorTokenId];
        expect(known === undefined).toBe(change === "leave");
        if (actor.actorTokenId === "bob") seen.push(`${change} ${JSON.stringify(actor.presence)}`);
      });
    }
    room.setPresence({ mood: "calm" });
    const there = bob.setApp("demo").setRoom("general");
    const joined = event(alice, "presence:join");
    there.setPresence({ mood: "good" });
    await joined;
    const updated = event(alice, "presence:update");
    await new Promise((resolve) => there.setPresence({ mood: "better" }, resolve));
    await updated;
    const actors = await room.fetchPresence();
    expect(actors.map(({ actorTokenId }) => actorTokenId).sort()).toEqual(["alice", "bob"]);
    expect(alice.getPresence("bob")).toMatchObject({ presence: { mood: "better" }, roomId: "general" });
    const left = event(alice, "presence:leave");
    bob.disconnect();
    await left;
    expect(seen.at(-1)).toMatch(/^leave/);
    // API-066
    alice.disconnect();
    expect(alice.getPresence()).toEqual([]);
  });

  test("it is announced again after a loss, and remembered before connect", async () => {
    const one = await broker();
    const [alice, bob] = [client(one.url), client(one.url, "bob")];
    const room = alice.setApp("demo").setRoom("general");
    let answer: unknown;
    bob
      .setApp("demo")
      .setRoom("general")
      .setPresence({ here: true }, (error) => {
        answer = error;
      });
    expect(answer).toMatchObject({ code: "not_connected" });
    await Promise.all([alice.connect(), bob.connect()]);
    room.setPresence({});
    const back = [event(alice, "reconnect"), event(bob, "reconnect")];
    await one.restart();
    await Promise.all(back);
    const names = async () => (await room.fetchPresence()).map(({ actorTokenId }) => actorTokenId);
    expect(await names()).toContain("bob");
  });

  test("lobbies: a snapshot, events, and what is not granted is refused at once (API-064)", async () => {
    const { url } = await broker();
    const [alice, bob] = await Promise.all([connected(url), connected(url, "bob")]);
    const lobby = alice.setApp("demo").setLobby("lounge");
    expect(await lobby.subscribe()).toEqual({ general: {}, kitchen: {}, garden: {} });
    const came = new Promise((resolve) => lobby.on("presence:join", resolve));
    bob.setApp("demo").setRoom("general").setPresence({ n: 1 });
    expect(await came).toMatchObject({ lobbyId: "lounge", roomId: "general", actorId: "bob", data: { n: 1 } });
    expect(Object.keys((await lobby.fetchPresence()).general ?? {})).toEqual(["bob"]);
    await expect(alice.setApp("demo").setLobby("attic").subscribe()).rejects.toMatchObject({ code: "not_authorized" });
    const updates = lobby.events();
    const next = updates.next();
    bob.disconnect();
    expect((await next).value).toMatchObject({ change: "leave", actorId: "bob" });
    await updates.return();
  });

  test("without a connection a query is Not connected", async () => {
    const { url } = await broker();
    const alice = client(url);
    await expect(alice.fetchPresence()).rejects.toMatchObject({ code: "not_connected" });
    await expect(alice.setApp("demo").setLobby("lounge").subscribe()).rejects.toMatchObject({ code: "not_connected" });
  });
});
