"""What users of the published Python client do, against our broker.

The client is `nolag` 2.6.0 as it lies on PyPI; applications that use it must not notice whose
broker it is that they talk to.
"""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.broker import ROOT, Broker, Connect
from kit.heard import Heard, outcome, settle
from nolag import (
    ActorType,
    EmitOptions,
    NoLag,
    NoLagOptions,
    NoLagServerError,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"


async def listen(client: NoLag, options: SubscribeOptions | None = None) -> Heard:
    """Subscribe to TOPIC, and hear its messages as (data, meta)."""
    messages = Heard()
    client.on(TOPIC, messages)
    assert await outcome(client.subscribe, TOPIC, options) is None
    return messages


def test_the_quick_start(broker: Broker) -> None:
    """`examples/quickstart.py` prints what the README says."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples/quickstart.py"],
        env={"NOLAG_URL": broker.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout == "bob got: {'text': 'hello from alice'}\n", run.stderr
    assert run.returncode == 0


class TestConnecting:
    """Handshake, heartbeat, and the end of a connection."""

    async def test_who_one_is(self, connect: Connect) -> None:
        """The answer to `auth` fills the client's properties."""
        alice = await connect("alice")
        assert alice.connected
        assert alice.actor_id == "alice"
        assert alice.project_id == "demo-project"
        assert alice.actor_type is ActorType.USER
        assert alice.protocol_version == 2

    async def test_a_wrong_token(self, broker: Broker) -> None:
        """A token that nobody knows is refused by name (C-021)."""
        stranger = NoLag("no-such-token", NoLagOptions(url=broker.url, reconnect=False))
        with pytest.raises(Exception, match="access_denied"):
            await stranger.connect()
        assert not stranger.connected
        stranger.disconnect()

    async def test_heartbeats_are_answered(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The client logs each answer to its heartbeat (C-027)."""
        answers = Heard()

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.getMessage() == "Heartbeat pong received":
                    answers(None)

        logger = logging.getLogger("nolag")
        listener = Listener()
        logger.addHandler(listener)
        try:
            with caplog.at_level(logging.DEBUG, logger="nolag"):
                await connect("alice", heartbeat_interval=0.05, debug=True)
                for _ in range(3):
                    await answers.next()
        finally:
            logger.removeHandler(listener)

    async def test_a_restarted_broker(
        self, broker: Broker, connect: Connect, tmp_path: Path
    ) -> None:
        """The client returns by itself and announces its presence again (C-125).

        It relies on the broker for its subscriptions, and a new broker knows none: so the
        application subscribes again.
        """
        bob = await connect("bob", reconnect_interval=0.1, max_reconnect_attempts=1000)
        lost, returned = Heard(), Heard()
        bob.on("disconnect", lost).on("reconnect", returned)
        messages = await listen(bob)
        await bob.set_presence({"mood": "steady"}, "general")
        await settle(bob)

        await asyncio.to_thread(broker.stop)
        await lost.next()
        assert not bob.connected
        again = await asyncio.to_thread(Broker, tmp_path, broker.port)
        try:
            await returned.next()
            assert bob.connected
            assert await outcome(bob.subscribe, TOPIC) is None
            alice = await connect("alice")
            assert [member["presence"] for member in await alice.fetch_presence("general")] == [
                {"mood": "steady"}
            ]
            assert await outcome(alice.emit, TOPIC, "welcome back") is None
            data, _ = await messages.next()
            assert data == "welcome back"
        finally:
            again.kill()


class TestMessages:
    """Publishing, subscribing, and what a message carries."""

    async def test_a_confirmed_message(self, connect: Connect) -> None:
        """The callback is told when the broker has it; it names its sender (C-061, C-067)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = await listen(bob)
        assert await outcome(alice.emit, TOPIC, {"text": "hello"}) is None
        data, meta = await messages.next()
        assert data == {"text": "hello"}
        assert meta.sender == "alice"
        assert meta.msg_id
        assert meta.timestamp
        assert not meta.is_replay
        assert meta.filter is None

    @pytest.mark.parametrize(
        "payload",
        [
            None,
            True,
            -(2**63),
            2**64 - 1,
            1.5,
            "grüße 👋",
            b"\x00\xff",
            b"text as bytes",
            [1, [2, [3]]],
            {"nested": {"map": []}, "none": None},
            "x" * 900_000,
        ],
        ids=lambda payload: str(payload)[:20],
    )
    async def test_payloads_arrive_as_they_were(self, connect: Connect, payload: Any) -> None:
        """Types survive (X-01, C-013, C-014)."""
        alice = await connect("alice")
        messages = await listen(alice)
        assert await outcome(alice.emit, TOPIC, payload) is None
        data, _ = await messages.next()
        assert data == payload
        assert type(data) is type(payload)

    async def test_order_and_number(self, connect: Connect) -> None:
        """Many messages arrive once each and in order (C-064)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = await listen(bob)
        # Half of what the broker takes from a connection in a second.
        for number in range(500):
            await alice.emit(TOPIC, number)
        for number in range(500):
            data, _ = await messages.next()
            assert data == number

    async def test_echo(self, connect: Connect) -> None:
        """One hears one's own messages unless one asks not to (C-065)."""
        alice, bob = await connect("alice"), await connect("bob")
        own, others = await listen(alice), await listen(bob)
        await alice.emit(TOPIC, "quiet", EmitOptions(echo=False))
        await alice.emit(TOPIC, "loud")
        assert (await own.next())[0] == "loud"
        assert [(await others.next())[0], (await others.next())[0]] == ["quiet", "loud"]

    async def test_a_topic_outside_the_grants(self, connect: Connect) -> None:
        """Both callbacks are told 42940, and so is whoever listens for errors (C-044)."""
        alice = await connect("alice")
        errors = Heard()
        alice.on("error", errors)
        elsewhere = "elsewhere/general/messages"
        for asking in [outcome(alice.subscribe, elsewhere), outcome(alice.emit, elsewhere, "data")]:
            error = await asking
            assert isinstance(error, NoLagServerError)
            assert (error.code, error.error) == (42940, "unknown_topic")
            assert error.topic == elsewhere
            assert error.hint
            assert await errors.next() is error

    async def test_unsubscribing(self, connect: Connect) -> None:
        """After `unsubscribe` nothing comes; another `subscribe` brings it back (C-051)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = await listen(bob)
        assert await outcome(bob.unsubscribe, TOPIC) is None
        await settle(bob)
        assert await outcome(alice.emit, TOPIC, "unheard") is None
        assert await outcome(bob.subscribe, TOPIC) is None
        assert await outcome(alice.emit, TOPIC, "heard") is None
        assert (await messages.next())[0] == "heard"

    async def test_wildcards(self, connect: Connect) -> None:
        """A message names the subscription as it was written (C-060)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages, everything = Heard(), Heard()
        bob.on("demo/general/+", messages).on_any(everything)
        assert await outcome(bob.subscribe, "demo/general/+") is None
        await alice.emit("demo/general/news", "one")
        await alice.emit("demo/general/weather", "two")
        assert [(await messages.next())[0], (await messages.next())[0]] == ["one", "two"]
        topic, data, _ = await everything.next()
        assert (topic, data) == ("demo/general/+", "one")

    async def test_rooms(self, connect: Connect) -> None:
        """`set_app().set_room()` is the same by other names."""
        alice, bob = await connect("alice"), await connect("bob")
        room = bob.set_app("demo").set_room("general")
        messages = Heard()
        room.on("messages", messages)
        assert await outcome(room.subscribe, "messages") is None
        assert await outcome(alice.set_app("demo").set_room("general").emit, "messages", 1) is None
        assert (await messages.next())[0] == 1
        room.off("messages", messages)
        assert await outcome(room.unsubscribe, "messages") is None

    async def test_retained_messages(self, connect: Connect) -> None:
        """Who comes late gets the last one (C-070, C-071)."""
        alice, bob = await connect("alice"), await connect("bob")
        for text in ("first", "last"):
            assert await outcome(alice.emit, TOPIC, text, EmitOptions(retain=True)) is None
        messages = await listen(bob)
        data, meta = await messages.next()
        assert data == "last"
        assert meta.sender == "alice"
        assert await outcome(alice.emit, TOPIC, "live") is None
        assert (await messages.next())[0] == "live"

    async def test_sharing_the_work(self, connect: Connect) -> None:
        """Each message goes to one of the group, and to everyone outside of it (C-079)."""
        alice = await connect("alice")
        workers = [await connect("bob") for _ in range(2)]
        group = SubscribeOptions(load_balance=True, load_balance_group="workers")
        shares = [await listen(worker, group) for worker in workers]
        everything = await listen(alice)
        for number in range(10):
            await alice.emit(TOPIC, number)
        assert [(await everything.next())[0] for _ in range(10)] == list(range(10))
        # Round robin: five each.
        work = [(await share.next())[0] for share in shares for _ in range(5)]
        assert sorted(work) == list(range(10))
        for worker in workers:
            await settle(worker)
        assert all(share.is_silent() for share in shares)


class TestFilters:
    """Filters of a subscription, and how they change."""

    async def publish(self, client: NoLag, *filters: str | list[str] | None) -> None:
        """Publish one message for each filter, the filter being its data."""
        for value in filters:
            if isinstance(value, list):
                options = EmitOptions(filters=value)
            else:
                options = EmitOptions(filter=value)
            assert await outcome(client.emit, TOPIC, value, options) is None

    async def test_only_what_matches(self, connect: Connect) -> None:
        """A filtered subscription gets its filters' messages and no others (C-053, C-054)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = await listen(bob, SubscribeOptions(filters=["vip"]))
        everything = await listen(alice)
        await self.publish(alice, None, "basic", "vip")
        data, meta = await messages.next()
        assert (data, meta.filter) == ("vip", "vip")
        assert [(await everything.next())[1].filter for _ in range(3)] == [None, "basic", "vip"]

    async def test_groups_are_taken_whole(self, connect: Connect) -> None:
        """An AND group matches the same group, whatever the order, and nothing else (C-055)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = await listen(bob, SubscribeOptions(filters=[["North", "fire"], "smoke"]))
        await self.publish(alice, ["fire"], ["fire", "north", "x"], "north", ["fire", "north"])
        data, meta = await messages.next()
        assert (data, meta.filter) == (["fire", "north"], "fire|north")
        await self.publish(alice, "smoke")
        assert (await messages.next())[0] == "smoke"

    async def test_changing_them(self, connect: Connect) -> None:
        """`set_filters`, `add_filters` and `remove_filters` take effect in turn (C-058)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = await listen(bob, SubscribeOptions(filters=["a", ["x", "y"]]))

        async def heard_of(*filters: str | list[str] | None) -> list[Any]:
            await settle(bob)
            await self.publish(alice, *filters)
            # What bob hears last is his own, which comes after everything of alice's.
            assert await outcome(bob.emit, TOPIC, "end", EmitOptions(filter=end)) is None
            heard = []
            while (data := (await messages.next())[0]) != "end":
                heard.append(data)
            return heard

        every: list[str | list[str] | None] = [None, "a", "b", "c", ["y", "x"]]
        end = "a"
        assert await heard_of(*every) == ["a", ["y", "x"]]
        await bob.add_filters(TOPIC, ["b"])
        assert await heard_of(*every) == ["a", "b", ["y", "x"]]
        await bob.remove_filters(TOPIC, ["a"])
        end = "b"
        assert await heard_of(*every) == ["b", ["y", "x"]]
        await bob.set_filters(TOPIC, ["c"])
        end = "c"
        assert await heard_of(*every) == ["c"]
        await bob.set_filters(TOPIC, [])
        assert await heard_of(*every) == every

    async def test_impossible_ones(self, connect: Connect) -> None:
        """A filter with a forbidden character is refused by the callback."""
        bob = await connect("bob")
        error = await outcome(bob.subscribe, TOPIC, SubscribeOptions(filters=["a/b"]))
        assert isinstance(error, NoLagServerError)
        assert error.code == 42960


class TestPresence:
    """Who is in a room."""

    async def test_coming_changing_and_going(self, connect: Connect) -> None:
        """Members hear of one another; a list tells the same (C-094, C-095, C-101)."""
        alice, bob = await connect("alice"), await connect("bob")
        joined, updated, left = Heard(), Heard(), Heard()
        bob.on("presence:join", joined)
        bob.on("presence:update", updated).on("presence:leave", left)
        await bob.set_app("demo").set_room("general").set_presence({"seat": 1})
        assert (await joined.next()).actor_token_id == "bob"
        assert (await updated.next()).presence == {"seat": 1}

        room = alice.set_app("demo").set_room("general")
        await room.set_presence({"seat": 2})
        member = await joined.next()
        assert (member.actor_token_id, member.presence) == ("alice", {"seat": 2})
        assert (await updated.next()).actor_token_id == "alice"

        await room.set_presence({"seat": 3})
        assert (await updated.next()).presence == {"seat": 3}
        listed = {
            member["actorTokenId"]: member["presence"] for member in await room.fetch_presence()
        }
        assert listed == {"alice": {"seat": 3}, "bob": {"seat": 1}}
        assert {actor.actor_token_id for actor in bob.get_all_presence()} == {"alice", "bob"}

        alice.disconnect()
        assert (await left.next()).actor_token_id == "alice"
        assert [member["actorTokenId"] for member in await bob.fetch_presence("general")] == ["bob"]

    async def test_clearing_it(self, connect: Connect) -> None:
        """`clear_presence` leaves the room (C-100)."""
        alice, bob = await connect("alice"), await connect("bob")
        joined, left = Heard(), Heard()
        bob.on("presence:join", joined).on("presence:leave", left)
        await bob.set_presence({}, "general")
        await joined.next()
        await alice.set_presence({}, "general")
        await joined.next()
        await alice.clear_presence()
        assert (await left.next()).actor_token_id == "alice"

    async def test_only_members_hear(self, connect: Connect) -> None:
        """Watching takes a lobby; a list can be had without being in the room (C-097, C-101)."""
        alice, bob = await connect("alice"), await connect("bob")
        joined = Heard()
        bob.on("presence:join", joined)
        await alice.set_presence({"here": True}, "general")
        await settle(alice)
        assert [member["presence"] for member in await bob.fetch_presence("general")] == [
            {"here": True}
        ]
        assert joined.is_silent()


class TestLobbies:
    """Presence of many rooms, watched from outside."""

    async def test_watching(self, connect: Connect) -> None:
        """A snapshot first, then what changes, until one stops watching (C-107 … C-109)."""
        alice, bob = await connect("alice"), await connect("bob")
        await alice.set_presence({"seat": 1}, "general")
        await settle(alice)

        lobby = bob.set_app("demo").set_lobby("lounge")
        joined, updated, left, any_left = Heard(), Heard(), Heard(), Heard()
        lobby.on("presence:join", joined).on("presence:update", updated)
        lobby.on("presence:leave", left)
        bob.on("lobbyPresence:leave", any_left)
        snapshot = await lobby.subscribe()
        assert snapshot["general"]["alice"]["presence"] == {"seat": 1}

        await alice.set_presence({"seat": 2}, "general")
        event = await updated.next()
        assert (event.room_id, event.actor_id, event.data) == ("general", "alice", {"seat": 2})
        assert (await lobby.fetch_presence())["general"]["alice"]["presence"] == {"seat": 2}

        await alice.clear_presence()
        assert (await left.next()).actor_id == "alice"
        assert (await any_left.next()).lobby_id == "lounge"
        assert await lobby.fetch_presence() == {"general": {}}

        await alice.set_presence({"seat": 3}, "general")
        event = await joined.next()
        assert (event.lobby_id, event.actor_id, event.data) == ("lounge", "alice", {"seat": 3})
        assert (await updated.next()).data == {"seat": 3}

        lobby.unsubscribe()
        # It sends in a task of its own, which the turn of the loop lets go first.
        await asyncio.sleep(0)
        await settle(bob)
        await alice.set_presence({"seat": 4}, "general")
        await settle(alice)
        await settle(bob)
        assert updated.is_silent()

    async def test_one_that_is_not_granted(self, connect: Connect) -> None:
        """The broker refuses it; the client itself only tells its error listeners (C-106)."""
        bob = await connect("bob")
        errors = Heard()
        bob.on("error", errors)
        asking = asyncio.ensure_future(bob.set_app("demo").set_lobby("cellar").subscribe())
        assert (await errors.next()).error == "not_authorized"
        asking.cancel()
