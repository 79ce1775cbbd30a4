"""Who is in a room, and who is in the rooms of a lobby."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker, Connect, grant, tokens
from kit.clients import Clients
from kit.heard import Heard, settle, until, within
from kit.scripted import Frame, Link, ScriptedBroker, agree, refuse, silent
from nolag import (
    ActorPresence,
    LobbyPresenceEvent,
    NoLagEncodeError,
    NoLagError,
    NoLagServerError,
    NotConnectedError,
)


def roster(*members: tuple[str, Any]) -> Any:
    """Make a rule that answers `getPresence` with these members."""

    async def rule(link: Link, frame: Frame) -> None:
        data = [{"actorTokenId": name, "presence": data, "joinedAt": 7} for name, data in members]
        await link.send("presenceList", roomId=frame["roomId"], data=data, msgRef=frame["msgRef"])

    return rule


class TestRooms:
    """Members of a room, against the broker."""

    async def test_coming_changing_and_going(self, connect: Connect) -> None:
        """One join, update and leave for each actor, and lists that say the same."""
        alice, bob = await connect("alice"), await connect("bob")
        heard = {name: Heard() for name in ("join", "update", "leave")}
        for name, handler in heard.items():
            bob.on(f"presence:{name}", handler)
        await bob.set_app("demo").set_room("general").set_presence({"seat": 1})
        member = await heard["join"].next()
        assert isinstance(member, ActorPresence)
        assert (member.actor_token_id, member.presence) == ("bob", {"seat": 1})

        room = alice.set_app("demo").set_room("general")
        await room.set_presence({"seat": 2})
        member = await heard["join"].next()
        assert (member.actor_token_id, member.presence) == ("alice", {"seat": 2})
        assert member.room_id == "general"

        await room.set_presence({"seat": 3})
        member = await heard["update"].next()
        assert (member.actor_token_id, member.presence) == ("alice", {"seat": 3})
        listed = {
            member["actorTokenId"]: member["presence"] for member in await room.fetch_presence()
        }
        assert listed == {"alice": {"seat": 3}, "bob": {"seat": 1}}
        assert {actor.actor_token_id for actor in bob.get_all_presence()} == {"alice", "bob"}
        known = bob.get_presence("alice")
        assert known is not None
        assert known.presence == {"seat": 3}
        assert bob.get_presence("nobody") is None
        assert set(bob.set_app("demo").set_room("general").get_presence()) == {"alice", "bob"}

        alice.disconnect()
        assert (await heard["leave"].next()).actor_token_id == "alice"
        assert [member["actorTokenId"] for member in await bob.fetch_presence("general")] == ["bob"]
        assert all(handler.is_silent() for handler in heard.values())

    @pytest.mark.parametrize("how", ["room", "client", "all"])
    async def test_clearing_it(self, connect: Connect, how: str) -> None:
        """It leaves the room, also for later connections."""
        alice, bob = await connect("alice"), await connect("bob")
        joined, left = Heard(), Heard()
        bob.on("presence:join", joined).on("presence:leave", left)
        await bob.set_presence({}, "general")
        await joined.next()
        room = alice.set_app("demo").set_room("general")
        await room.set_presence({})
        await joined.next()
        if how == "room":
            await room.clear_presence()
        elif how == "client":
            await alice.clear_presence("general")
        else:
            await alice.clear_presence()
        assert (await left.next()).actor_token_id == "alice"

    async def test_two_connections_of_one_actor(self, connect: Connect) -> None:
        """They are one member; it leaves with the last of them (K-049)."""
        bob = await connect("bob")
        first, second = await connect("alice"), await connect("alice")
        heard = {name: Heard() for name in ("join", "leave")}
        for name, handler in heard.items():
            bob.on(f"presence:{name}", handler)
        await bob.set_presence({"seat": 0}, "general")
        await heard["join"].next()
        for seat, client in enumerate((first, second), 1):
            await client.set_presence({"seat": seat}, "general")
        await until(lambda: len(getattr(bob.get_presence("alice"), "connections", ())) == 2)
        assert (await heard["join"].next()).actor_token_id == "alice"
        first.disconnect()
        await until(lambda: len(getattr(bob.get_presence("alice"), "connections", ())) == 1)
        assert heard["leave"].is_silent()
        second.disconnect()
        assert (await heard["leave"].next()).actor_token_id == "alice"
        assert heard["join"].is_silent()

    async def test_a_list_without_membership(self, connect: Connect) -> None:
        """One may look without being there, and hears nothing then."""
        alice, bob = await connect("alice"), await connect("bob")
        joined = Heard()
        bob.on("presence:join", joined)
        await alice.set_presence({"here": True}, "general")
        await settle(alice)
        [member] = await bob.fetch_presence("general")
        assert member["presence"] == {"here": True}
        assert joined.is_silent()

    async def test_the_cache(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is empty after `disconnect`, and right again after a loss (API-066)."""
        scripted.rules["getPresence"] = roster(("alice", {"seat": 1}), ("bob", {"seat": 2}))
        client, link = await clients.link(scripted)
        heard = {name: Heard() for name in ("join", "update", "leave")}
        for name, handler in heard.items():
            client.on(f"presence:{name}", handler)
        await client.set_presence({"seat": 1}, "general")
        joined = {member.actor_token_id for member in await heard["join"].many(2)}
        assert joined == {"alice", "bob"}

        scripted.rules["getPresence"] = roster(("alice", {"seat": 1}), ("carol", {"seat": 3}))
        link.cut()
        assert (await heard["leave"].next()).actor_token_id == "bob"
        assert (await heard["join"].next()).actor_token_id == "carol"
        assert {member.actor_token_id for member in client.get_all_presence()} == {"alice", "carol"}
        assert all(handler.is_silent() for handler in heard.values())

        client.disconnect()
        assert client.get_all_presence() == []
        assert client.get_presence("carol") is None

    async def test_two_lists_at_once(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Each call gets its own room's answer, whatever the order (API-063)."""
        held: list[Frame] = []
        scripted.rules["getPresence"] = lambda _link, frame: held.append(frame)
        client, link = await clients.link(scripted)
        asking = [
            asyncio.create_task(client.fetch_presence(room)) for room in ("one", "two", "one")
        ]
        await until(lambda: len(held) == 3)
        for frame in reversed(held):
            await roster((f"in-{frame['roomId']}", {}))(link, frame)
        answers = await within(asyncio.gather(*asking))
        assert [[member.actor_token_id for member in answer] for answer in answers] == [
            ["in-one"],
            ["in-two"],
            ["in-one"],
        ]

    async def test_spellings(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Snake case and camel case are the same (API-065, K-048, K-050, K-053)."""
        client, link = await clients.link(scripted)
        await client.set_presence({}, "general")
        joined, updated, left, waking = Heard(), Heard(), Heard(), Heard()
        await until(lambda: client.get_presence("alice") is not None)
        client.on("presence:join", joined).on("presence:update", updated)
        client.on("presence:leave", left).on("presence:waking", waking)
        actors = []
        for snake in (True, False):
            data = {
                "actor_token_id" if snake else "actorTokenId": "carol",
                "presence": {"x": 1},
                "joined_at" if snake else "joinedAt": 5,
                "actor_type" if snake else "actorType": "submarine",
                "advertisement_version" if snake else "advertisementVersion": 2,
            }
            # An update of somebody unknown is a join.
            await link.send("presence", event="update", roomId="general", data=data)
            actors.append(await joined.next())
            name = "actor_token_id" if snake else "actorTokenId"
            await link.send("presence", event="leave", roomId="general", data={name: "carol"})
            assert (await left.next()).actor_token_id == "carol"
        first, second = actors
        assert first == second
        assert (first.joined_at, first.actor_type, first.advertisement_version) == (
            5,
            "submarine",
            2,
        )
        assert first["actorTokenId"] == first["actor_token_id"] == "carol"
        assert (first.get("joinedAt"), first.get("nothing", 0)) == (5, 0)
        await link.send(
            "presence", event="waking", roomId="general", data={"actor_token_id": "dave"}
        )
        assert (await waking.next()).actor_token_id == "dave"

    async def test_a_room_without_a_name(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is announced to nobody, which the client says once (client-api 9)."""
        alice = await connect("alice")
        for seat in range(2):
            await alice.set_presence({"seat": seat})
        await settle(alice)
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1

    async def test_an_unknown_room(self, connect: Connect) -> None:
        """It is an error, not a silence (X-09)."""
        alice = await connect("alice")
        errors = Heard()
        alice.on("error", errors)
        await alice.set_presence({}, "attic")
        error = await errors.next()
        assert isinstance(error, NoLagServerError)
        assert error.error == "unknown_room"

    async def test_several_rooms(self, tmp_path: Path, clients: Clients) -> None:
        """A broker that keeps one for each connection says which one it gave up (client-api 9)."""
        grant(tmp_path, tokens())
        broker = Broker(tmp_path)
        try:
            alice = await clients.connect(broker.url, "alice", features=[])
            replaced = Heard()
            alice.on("presence:replaced", replaced)
            await alice.set_presence({}, "general")
            await alice.set_presence({}, "kitchen")
            assert (await replaced.next())["room"] == "general"
        finally:
            broker.kill()

    async def test_no_answer(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is told as such (Appendix B)."""
        scripted.rules["getPresence"] = silent
        client, _ = await clients.link(scripted, presence_timeout=0.1)
        with pytest.raises(NoLagError) as raised:
            await client.fetch_presence("general")
        assert raised.value.code == "presence_timeout"

    async def test_a_loss(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A question does not outlive its connection (client-api 7.4)."""
        scripted.rules["getPresence"] = silent
        client, link = await clients.link(scripted)
        asking = asyncio.create_task(client.fetch_presence("general"))
        await link.next("getPresence")
        link.cut()
        with pytest.raises(NoLagError) as raised:
            await within(asking)
        assert (raised.value.code, raised.value.retryable) == ("lost", True)

    async def test_presence_before_connecting(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """It is kept for the connection to come (Appendix B)."""
        client = clients.make(scripted.url)
        await client.set_presence({"seat": 1}, "general")
        with pytest.raises(NotConnectedError):
            await client.fetch_presence("general")
        await client.connect()
        link = await scripted.link()
        frame = await link.next("presence")
        assert (frame["roomId"], frame["data"]) == ("general", {"seat": 1})

    async def test_what_cannot_be_said(self, connect: Connect) -> None:
        """Presence is data like any other (Appendix B)."""
        alice = await connect("alice")
        with pytest.raises(NoLagEncodeError):
            await alice.set_presence({"what": object()}, "general")
        assert alice.connected


class TestLobbies:
    """Many rooms, watched from outside."""

    async def test_watching(self, connect: Connect) -> None:
        """A snapshot first, then what changes, until one stops watching (API-062)."""
        alice, bob = await connect("alice"), await connect("bob")
        await alice.set_presence({"seat": 1}, "general")
        await settle(alice)

        lobby = bob.set_app("demo").set_lobby("lounge")
        assert lobby.lobby_id == "lounge"
        joined, updated, left, any_left = Heard(), Heard(), Heard(), Heard()
        lobby.on("presence:join", joined).on("presence:update", updated)
        lobby.on("presence:leave", left)
        bob.on("lobbyPresence:leave", any_left)
        record = (await lobby.subscribe())["general"]["alice"]
        # As the broker sends it, and as if it were the presence itself.
        assert record["presence"] == {"seat": 1}
        assert (record["actorTokenId"], record["seat"], record.get("seat")) == ("alice", 1, 1)
        assert "seat" in record
        assert record.get("nothing") is None

        await alice.set_presence({"seat": 2}, "general")
        event = await updated.next()
        assert isinstance(event, LobbyPresenceEvent)
        assert (event.room_id, event.actor_id, event.data) == ("general", "alice", {"seat": 2})
        assert (event["actor_id"], event["actorId"], event.get("data")) == (
            "alice",
            "alice",
            {"seat": 2},
        )
        assert (await lobby.fetch_presence())["general"]["alice"]["presence"] == {"seat": 2}

        await alice.clear_presence("general")
        assert (await left.next()).actor_id == "alice"
        assert (await any_left.next()).lobby_id == "lounge"
        assert await lobby.fetch_presence() == {"general": {}}

        await alice.set_presence({"seat": 3}, "general")
        event = await joined.next()
        assert (event.lobby_id, event.actor_id, event.data) == ("lounge", "alice", {"seat": 3})

        # Officially a plain call, of which nothing can be awaited.
        await lobby.unsubscribe()
        await settle(bob)
        updated.rest()
        await alice.set_presence({"seat": 4}, "general")
        await settle(alice)
        await settle(bob)
        assert updated.is_silent()

    async def test_unsubscribing_as_officially(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """Without `await` it works as well."""
        client, link = await clients.link(scripted)
        lobby = client.set_app("demo").set_lobby("lounge")
        await lobby.subscribe()
        lobby.unsubscribe()
        assert (await link.next("lobbyUnsubscribe"))["lobbyId"] == "lounge"
        link.cut()
        second = await scripted.link()
        await second.next("auth")
        await settle(client)
        assert not second.received("lobbySubscribe")

    async def test_events_as_an_iterator(self, connect: Connect) -> None:
        """`events` gives what the handlers get."""
        alice, bob = await connect("alice"), await connect("bob")
        lobby = bob.set_app("demo").set_lobby("lounge")
        await lobby.subscribe()
        events = lobby.events()
        first = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        await alice.set_presence({"seat": 1}, "general")
        kind, event = await within(first)
        assert (kind, event.actor_id) == ("join", "alice")
        await events.aclose()

    @pytest.mark.parametrize("call", ["subscribe", "fetch_presence"])
    async def test_one_that_is_not_granted(self, connect: Connect, call: str) -> None:
        """It is refused in one round trip (API-064)."""
        bob = await connect("bob")
        lobby = bob.set_app("demo").set_lobby("cellar")
        with pytest.raises(NoLagServerError, match="not_authorized"):
            await within(getattr(lobby, call)())
        assert bob.connected

    async def test_no_answer(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is told as such (Appendix B)."""
        for kind in ("lobbySubscribe", "getLobbyPresence"):
            scripted.rules[kind] = silent
        client, _ = await clients.link(scripted, ack_timeout=0.1)
        lobby = client.set_app("demo").set_lobby("lounge")
        for call in (lobby.subscribe, lobby.fetch_presence):
            with pytest.raises(NoLagError) as raised:
                await call()
            assert raised.value.code == "lobby_timeout"

    async def test_by_internal_id(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Kraken names a lobby by its id; with one lobby it can only be that one (K-052)."""
        client, link = await clients.link(scripted)
        lobby = client.set_app("demo").set_lobby("lounge")
        joined = Heard()
        lobby.on("presence:join", joined)
        await lobby.subscribe()
        await link.send(
            "lobbyPresence", event="join", lobbyId="lobby-4711", roomId="r", actorId="x", data={}
        )
        event = await joined.next()
        assert (event.lobby_id, event.actor_id) == ("lounge", "x")

    async def test_a_refusal_of_recovery(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A lobby that is refused after a loss is an error, and the rest goes on."""
        client, link = await clients.link(scripted)
        await client.set_app("demo").set_lobby("lounge").subscribe()
        scripted.rules["lobbySubscribe"] = refuse(error="not_authorized")
        errors, back = Heard(), Heard()
        client.on("error", errors).on("reconnect", back)
        link.cut()
        await back.next()
        told = [error for error in errors.rest() if isinstance(error, NoLagServerError)]
        assert [error.error for error in told] == ["not_authorized"]
        scripted.rules["lobbySubscribe"] = agree
