"""What a broker grants beyond the published protocol, as Python programs have it."""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kit.broker import Broker, Connect, grant, tokens
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.net import Proxy
from kit.scripted import Frame, Link, ScriptedBroker
from nolag import (
    ConfigError,
    Message,
    Position,
    QueueError,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ALL = {"recover", "dedupe", "rooms", "batch", "redeliver", "reauth", "trace"}


@pytest_asyncio.fixture
async def way(broker: Broker) -> AsyncIterator[Proxy]:
    """Lead to the broker by a way that can be cut."""
    proxy = Proxy(broker.port)
    await proxy.open()
    yield proxy
    await proxy.shut()


def granting(*features: str, **answers: Any) -> Any:
    """Make a rule that answers `auth` with these features."""

    async def rule(link: Link, _frame: Frame) -> None:
        await link.send(
            "auth",
            success=True,
            actorTokenId="alice",
            protocolVersion=2,
            features=list(features),
            **answers,
        )

    return rule


class TestNegotiation:
    """What is asked for, and what is granted."""

    async def test_all(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """All is asked for unless told otherwise; what counts is the grant (client-api 3.4)."""
        scripted.rules["auth"] = granting("trace", "recover", "time travel")
        client = clients.make(scripted.url)
        assert client.features == frozenset()
        await client.connect()
        assert set(scripted.frames("auth")[0]["features"]) == ALL
        # F-02: a name that we do not know changes nothing.
        assert client.features == {"trace", "recover"}

    async def test_some(self, connect: Connect) -> None:
        """The option `features` limits what is asked for (features 1)."""
        some = await connect("alice", features=["recover", "trace"])
        assert some.features == {"recover", "trace"}
        none = await connect("bob", features=())
        assert none.features == frozenset()
        with pytest.raises(AttributeError):
            none.features = frozenset()  # type: ignore[misc]

    async def test_none(self, clients: Clients, tmp_path: Path) -> None:
        """With a broker that grants nothing all goes on as before (F-01, API-035)."""
        broker = Broker(tmp_path, NOLAG_FEATURES="none")
        way = Proxy(broker.port)
        await way.open()
        try:
            bob = await clients.connect(way.url, "bob")
            assert bob.features == frozenset()
            gaps, messages = Heard(), Heard()
            bob.on("gap", gaps).on(TOPIC, messages)
            assert await outcome(bob.subscribe, TOPIC) is None
            before = time.time()
            receipt = await bob.publish(TOPIC, 1, trace=TRACE)
            assert receipt.level is None
            _, meta = await messages.next()
            assert (meta.seq, meta.trace) == (None, None)
            assert bob.position(TOPIC) is None
            await way.shut()
            await way.open()
            gap = await gaps.next()
            assert (gap["topic"], gap["reason"]) == (TOPIC, "unsupported")
            # When the lost connection last received anything, on the clock of `time.time`.
            assert before - 1 <= gap["since"] <= time.time() + 1
        finally:
            await way.shut()
            broker.kill()


class TestPositions:
    """How far a program is, and where it goes on."""

    async def test_a_restart_of_the_program(self, connect: Connect) -> None:
        """A new client goes on behind the stored position (API-101)."""
        alice = await connect("alice")
        first = await connect("bob", ack_mode="after_handler")
        done, never = Heard(), asyncio.Event()

        async def handle(data: Any, _meta: Any) -> None:
            if data >= 3:
                await never.wait()
            done(data)

        first.on(TOPIC, handle)
        assert await outcome(first.subscribe, TOPIC) is None
        for number in range(5):
            await alice.publish(TOPIC, number)
        assert await done.many(3) == [0, 1, 2]
        await settle(first)
        await first.disconnect()
        stored = json.dumps(first.position(TOPIC))
        for number in (5, 6):
            await alice.publish(TOPIC, number)

        second = await connect("bob")
        gaps = Heard()
        second.on("gap", gaps)
        async with second.subscription(TOPIC, resume_from=json.loads(stored)) as subscription:
            heard = [(await within(anext(subscription))).data for _ in range(4)]
            # Those that were not finished, and those that came later.
            assert heard == [3, 4, 5, 6]
            await alice.publish(TOPIC, 7)
            assert (await within(anext(subscription))).data == 7
        assert gaps.is_silent()

    async def test_a_position_of_another_run(self, connect: Connect) -> None:
        """It is a gap, and there is no time since when (features 2)."""
        bob = await connect("bob")
        gaps = Heard()
        bob.on("gap", gaps)
        await bob.subscribe(TOPIC, SubscribeOptions(resume_from=Position("another", 7)))
        gap = await gaps.next()
        assert gap == {"topic": TOPIC, "reason": "epoch", "since": None}
        at = bob.position(TOPIC)
        assert at is not None
        assert at.epoch != "another"

    async def test_positions_before_and_after(self, connect: Connect, clients: Clients) -> None:
        """They are nothing without a subscription, and go with it."""
        assert clients.make("ws://127.0.0.1:9/ws").position(TOPIC) is None
        bob = await connect("bob")
        room = bob.set_app("demo").set_room("general")
        assert room.position("messages") is None
        async with room.subscription("messages") as subscription:
            assert isinstance(subscription.position, Position)
            assert room.position("messages") == subscription.position
        await until(lambda: bob.position(TOPIC) is None)

    async def test_history_of_handlers(self, connect: Connect) -> None:
        """`subscribe` takes it, too, and so do mappings (F-08)."""
        alice, bob = await connect("alice"), await connect("bob")
        await alice.publish(TOPIC, "kept", retain=True)
        messages, framed = Heard(), Heard()
        bob.on("replay:start", framed).on("replay:end", framed)
        room = bob.set_app("demo").set_room("general")
        await room.subscribe("messages", messages, {"history": 5})
        data, meta = await messages.next()
        assert (data, meta.is_replay) == ("kept", True)
        assert isinstance(meta.seq, int)
        start, end = await framed.many(2)
        assert (start["topic"], start["count"], end["replayed"]) == (TOPIC, 1, 1)

    @pytest.mark.parametrize(
        "options",
        [
            {"resume_from": 7},
            {"resume_from": {"epoch": "e", "seq": 1, "more": 2}},
            {"resume_from": {"epoch": "e", "seq": 1.5}},
            {"resume_from": Position(b"e", 1)},  # type: ignore[arg-type]
            {"ack_timeout": 0.5},
            {"ack_timeout": 3_601},
            {"redeliver": "yes"},
        ],
        ids=str,
    )
    async def test_what_is_malformed(
        self, clients: Clients, scripted: ScriptedBroker, options: dict[str, Any]
    ) -> None:
        """It is said by the call, connected or not, and names the option (FC-26)."""
        [name] = options
        idle = clients.make(scripted.url)
        client, link = await clients.link(scripted)
        for one in (idle, client):
            with pytest.raises(ConfigError, match=name):
                one.subscription(TOPIC, **options)
            with pytest.raises(ConfigError, match=name):
                await one.subscribe(TOPIC, SubscribeOptions(**options))
            with pytest.raises(ConfigError, match=name):
                await anext(one.messages(TOPIC, **options))
        await settle(client)
        assert not link.received("subscribe")

    @pytest.mark.parametrize(
        "options",
        [
            {"history": 5, "load_balance": True},
            {"resume_from": Position("e", 1), "load_balance": True},
            {"redeliver": True},
            {"ack_timeout": 5, "load_balance": True},
        ],
        ids=str,
    )
    async def test_what_means_nothing(
        self, clients: Clients, scripted: ScriptedBroker, options: dict[str, Any]
    ) -> None:
        """What is for groups is not for others, and the other way round (features 2 and 6)."""
        client, _ = await clients.link(scripted)
        client.on("error", lambda _error: None)
        assert isinstance(await outcome(client.subscribe, TOPIC, options), ConfigError)
        with pytest.raises(ConfigError):
            await within(client.subscription(TOPIC, **options).ready())


class TestReceipts:
    """What a receipt says of a publish."""

    async def test_without_dedupe(self, connect: Connect) -> None:
        """A quality that is not given is not claimed (features 3)."""
        alice = await connect("alice", features=["recover"])
        receipt = await alice.publish(TOPIC, 1, qos=2)
        assert (receipt.qos, receipt.effective_qos, receipt.level) == (2, 1, "memory")
        written = await alice.publish(TOPIC, 1, qos=0)
        assert (written.outcome, written.effective_qos, written.level) == ("written", 0, None)


class TestRedelivery:
    """A message of a group is another's if its holder does not acknowledge it."""

    GROUP = SubscribeOptions(
        load_balance=True, load_balance_group="w", redeliver=True, ack_timeout=2
    )

    async def test_the_frame(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is asked for where it is granted (features 6)."""
        scripted.rules["auth"] = granting("redeliver")
        client, link = await clients.link(scripted)
        await client.subscribe(TOPIC, self.GROUP)
        frame = await link.next("subscribe")
        assert (frame["redeliver"], frame["ackTimeoutMs"]) == (True, 2_000)
        scripted.rules["auth"] = granting()
        client, link = await clients.link(scripted)
        await client.subscribe(TOPIC, self.GROUP)
        assert not {"redeliver", "ackTimeoutMs"} & (await link.next("subscribe")).keys()

    async def test_handlers(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A message is acknowledged when its handlers have succeeded, in any mode (features 6)."""
        scripted.rules["auth"] = granting("redeliver")
        client, link = await clients.link(scripted)
        client.on("error", lambda _error: None)
        gate = asyncio.Event()

        async def handle(data: Any, _meta: Any) -> None:
            await gate.wait()
            if data == "bad":
                message = "bad"
                raise ValueError(message)

        client.on(TOPIC, handle)
        assert await outcome(client.subscribe, TOPIC, self.GROUP) is None
        for number, data in enumerate(("good", "bad", "better")):
            await link.message(TOPIC, data, msgId=f"m-{number}", requiresAck=True)
        await settle(client)
        assert not link.received("ack")
        gate.set()
        assert await acknowledged(link, 2) == ["m-0", "m-2"]

    @pytest.mark.parametrize("how", ["done", "failed", "dropped"])
    async def test_iterators(self, clients: Clients, scripted: ScriptedBroker, how: str) -> None:
        """What was not done when an iterator ends is not acknowledged (features 6)."""
        scripted.rules["auth"] = granting("redeliver")
        client, link = await clients.link(scripted)

        async def read(messages: AsyncIterator[Message]) -> None:
            async for message in messages:
                if message.data == 1:
                    if how == "failed":
                        raise LookupError
                    return

        async def work() -> None:
            group = dataclasses.asdict(self.GROUP)
            if how == "dropped":  # whether its last message was done is not known
                await read(client.messages(TOPIC, **group))
                return
            async with client.subscription(TOPIC, **group) as subscription:
                await read(subscription)

        working = asyncio.create_task(work())
        await link.next("subscribe")
        for number in range(4):
            await link.message(TOPIC, number, msgId=f"m-{number}", requiresAck=True)
        await asyncio.wait([working])
        await link.next("unsubscribe")
        client.ack("m-x")
        ids: list[str] = []
        while "m-x" not in ids:
            ids += await acknowledged(link, 1)
        assert ids == (["m-0", "m-1", "m-x"] if how == "done" else ["m-0", "m-x"])
        assert (working.exception() is None) == (how != "failed")

    async def test_a_worker_that_dies(self, connect: Connect, clients: Clients, way: Proxy) -> None:
        """What it held comes to another, once each, and marked (F-13)."""
        alice = await connect("alice")
        if "redeliver" not in alice.features:
            pytest.skip("this broker does not grant `redeliver`")
        dying = await clients.connect(way.url, "bob", reconnect=False)
        held, never = Heard(), asyncio.Event()

        async def hold(data: Any, _meta: Any) -> None:
            held(data)
            await never.wait()

        dying.on(TOPIC, hold).on("error", lambda _error: None)
        group = SubscribeOptions(load_balance=True, load_balance_group="w", redeliver=True)
        assert await outcome(dying.subscribe, TOPIC, group) is None
        for number in range(10):
            await alice.publish(TOPIC, number)
        await held.next()
        await settle(dying)
        other = await connect("bob")
        messages = Heard()
        other.on(TOPIC, messages)
        assert await outcome(other.subscribe, TOPIC, group) is None
        await way.shut()
        heard = await messages.many(10)
        assert sorted(data for data, _ in heard) == [*range(10)]
        assert all(meta.redelivered for _, meta in heard)
        await settle(other)
        assert messages.is_silent()


class TestHints:
    """What the program knows of network and sleep (client-api 10.3, 10.4)."""

    async def test_a_network_that_is_another(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """A connection that is up proves that it lives, or is replaced."""
        client, link = await clients.link(scripted, heartbeat_interval=0)
        client.notify_online()
        await link.next("heartbeat")
        await settle(client)
        link.freeze()
        client.notify_online()
        await scripted.link()
        link.cut()

    async def test_sleep(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """What is to be acknowledged goes out before, and what is wanted stays."""
        client, link = await clients.link(scripted, ack_batch_interval=60, reconnect_interval=60)
        messages = Heard()
        client.on(TOPIC, messages)
        assert await outcome(client.subscribe, TOPIC) is None
        await link.message(TOPIC, 1, msgId="m-1", requiresAck=True)
        await messages.next()
        await settle(client)
        client.suspend()
        assert await acknowledged(link, 1) == ["m-1"]
        link.cut()
        await until(lambda: client.state == "suspended")
        client.notify_online()
        await client.emit(TOPIC, "queued")
        assert not scripted.has_arrivals()
        # From another thread, as the operating system may call.
        await asyncio.to_thread(client.resume)
        second = await scripted.link()
        await second.next("subscribe")
        assert (await second.next("publish"))["data"] == "queued"

    async def test_before_connecting(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """They mean nothing without a client that wants a connection."""
        client = clients.make(scripted.url)
        for hint in ("notify_offline", "notify_online", "suspend", "resume", "reconnect_now"):
            getattr(client, hint)()
        assert client.state == "idle"
        await client.connect()


class TestRooms:
    """Presence in several rooms at once."""

    @pytest.fixture
    def broker(self, tmp_path: Path) -> Iterator[Broker]:
        """Run a broker whose tokens know two apps with a room `general` each."""
        given = tokens()
        for token in given["tokens"].values():
            token["allowedTopics"].append(
                {
                    "pattern": "other/general/#",
                    "permission": "pubSub",
                    "room_id": "room-of-another-app",
                    "room_slug": "general",
                }
            )
        grant(tmp_path, given)
        broker = Broker(tmp_path)
        yield broker
        broker.kill()

    async def test_several(self, connect: Connect) -> None:
        """None ends another, and a loss of the connection ends all (F-11)."""
        alice, bob = await connect("alice"), await connect("bob")
        replaced, left = Heard(), Heard()
        alice.on("presence:replaced", replaced)
        bob.on("presence:leave", left)
        rooms = ("general", "kitchen", "garden")
        for client in (bob, alice):
            for room in rooms:
                await client.set_app("demo").set_room(room).set_presence({"in": room})
        demo = bob.set_app("demo")
        await until(lambda: len(bob.get_all_presence()) == 6)
        for room in rooms:
            member = demo.set_room(room).get_presence()["alice"]
            assert (member.app, member.room_id) == ("demo", room)
            assert member.presence == {"in": room}
        names = [(who.room_id, who.actor_token_id) for who in bob.get_all_presence()]
        assert sorted(names) == sorted((room, who) for room in rooms for who in ("alice", "bob"))
        assert replaced.is_silent()
        alice.disconnect()
        assert {who.room_id for who in await left.many(3)} == set(rooms)

    async def test_equal_names(self, connect: Connect) -> None:
        """Rooms of two apps are two rooms, whatever they are called (F-17)."""
        alice, bob = await connect("alice"), await connect("bob")
        demo = alice.set_app("demo").set_room("general")
        other = alice.set_app("other").set_room("general")
        joined = Heard()
        alice.on("presence:join", joined)
        await demo.set_presence({"app": "demo"})
        await other.set_presence({"app": "other"})
        await joined.many(2)
        await bob.set_app("other").set_room("general").set_presence({})
        assert ((await joined.next()).app, joined.is_silent()) == ("other", True)
        assert set(demo.get_presence()) == {"alice"}
        assert set(other.get_presence()) == {"alice", "bob"}
        assert demo.get_presence()["alice"].presence == {"app": "demo"}
        assert [who.actor_token_id for who in await demo.fetch_presence()] == ["alice"]
        assert len(await other.fetch_presence()) == 2

        await other.clear_presence()
        await until(lambda: other.get_presence() == {})
        assert set(demo.get_presence()) == {"alice"}
        assert [who.app for who in alice.get_all_presence()] == ["demo"]

    async def test_a_room_without_its_app(self, connect: Connect) -> None:
        """It is the first that the token knows, whose app is told (features 4)."""
        alice = await connect("alice")
        joined = Heard()
        alice.on("presence:join", joined)
        await alice.set_presence({"seat": 1}, "general")
        assert (await joined.next()).app == "demo"
        assert set(alice.set_app("demo").set_room("general").get_presence()) == {"alice"}
        await alice.clear_presence("general")
        await until(lambda: alice.get_all_presence() == [])

    async def test_too_many(self, connect: Connect) -> None:
        """64 rooms are the most, and one more is told of (features 4)."""
        alice = await connect("alice")
        errors = Heard()
        alice.on("error", errors)
        demo = alice.set_app("demo")
        for number in range(64):
            await demo.set_room(f"r{number}").set_presence({})
        await demo.set_room("one-more").set_presence({})
        error = await errors.next()
        while not isinstance(error, QueueError):
            error = await errors.next()  # that the rooms are not known
        assert error.code == "queue_full"


async def acknowledged(link: Link, number: int) -> list[str]:
    """Wait for so many ids of acknowledgements."""
    ids: list[str] = []
    while len(ids) < number:
        frame = await link.next("ack", "batchAck")
        ids += frame["msgIds"] if frame["type"] == "batchAck" else [frame["msgId"]]
    return ids
