"""Subscriptions that continue where they stopped, and publishes that are recognised (features)."""

from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker, Connect, grant, tokens
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.net import Proxy
from kit.scripted import ScriptedBroker
from nolag import ConfigError, NoLag, NoLagServerError, Position

TOPIC = "demo/general/messages"


class TestLosses:
    """A connection that is lost, and comes back."""

    async def test_what_was_missed(self, broker: Broker, clients: Clients) -> None:
        """Fifty messages, each once and in order, and then what is live (F-03, API-101)."""
        alice = await clients.connect(broker.url, "alice")
        proxy = Proxy(broker.port)
        await proxy.open()
        try:
            bob = await clients.connect(proxy.url, "bob")
            assert {"recover", "dedupe"} <= bob.features
            messages, gaps, ready = Heard(), Heard(), Heard()
            bob.on(TOPIC, messages).on("gap", gaps).on("ready", ready)
            assert await outcome(bob.subscribe, TOPIC) is None
            await alice.publish(TOPIC, -1)
            assert (await messages.next())[0] == -1
            ready.rest()  # that of the first connection
            await proxy.shut()
            for number in range(50):
                await alice.publish(TOPIC, number)
            await proxy.open()
            report = await ready.next()
            assert report["resumed"]
            assert report["gaps"] == []
            await alice.publish(TOPIC, 50)
            heard = await messages.many(51)
            assert [data for data, _ in heard] == list(range(51))
            assert [meta.is_replay for _, meta in heard] == [True] * 50 + [False]
            assert [meta.seq for _, meta in heard] == sorted(meta.seq for _, meta in heard)
            await settle(bob)
            assert messages.is_silent()
            assert gaps.is_silent()
            assert bob.stats().gaps == 0
        finally:
            await proxy.shut()

    @pytest.mark.parametrize("kept", [False, True], ids=["memory", "disk"])
    async def test_a_restart(self, tmp_path: Path, clients: Clients, *, kept: bool) -> None:
        """Without a store the gap is told with its reason; with one there is none (F-05)."""
        settings = {"STORE_PATH": str(tmp_path / "store")} if kept else {}
        broker = Broker(tmp_path, 0, **settings)
        try:
            alice = await clients.connect(broker.url, "alice")
            bob = await clients.connect(broker.url, "bob")
            messages, gaps, back = Heard(), Heard(), Heard()
            bob.on(TOPIC, messages).on("gap", gaps).on("reconnect", back)
            assert await outcome(bob.subscribe, TOPIC) is None
            receipt = await alice.publish(TOPIC, 1)
            assert receipt.level == ("disk" if kept else "memory")
            assert (await messages.next())[0] == 1
            broker.kill()
            await until(lambda: not bob.connected)
            broker.start()
            await back.next()
            if not kept:
                gap = await gaps.next()
                assert (gap["topic"], gap["reason"]) == (TOPIC, "epoch")
                assert gap["since"] > 1_700_000_000
            await until(lambda: alice.connected)
            await alice.publish(TOPIC, 2)
            assert (await messages.next())[0] == 2
            assert gaps.is_silent()
        finally:
            broker.kill()

    async def test_a_broker_without_it(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It says so by granting nothing, and each loss is a gap."""
        client, link = await clients.link(scripted)
        assert client.features == frozenset()
        gaps = Heard()
        client.on("gap", gaps)
        await client.subscribe(TOPIC)
        assert client.position(TOPIC) is None
        link.cut()
        assert (await gaps.next())["reason"] == "unsupported"


class TestPositions:
    """Programs that are started again."""

    async def test_continuing_after_a_restart(self, broker: Broker, clients: Clients) -> None:
        """A message whose handler had not finished comes again, and none is missed (API-101)."""
        alice = await clients.connect(broker.url, "alice")
        before = clients.make(broker.url, "bob", ack_mode="after_handler")
        await before.connect()
        async with before.subscription(TOPIC) as subscription:
            for number in range(4):
                await alice.publish(TOPIC, number)
            for number in range(3):
                assert (await within(anext(subscription))).data == number
            await before.disconnect()
            stored = subscription.position
        assert isinstance(stored, Position)
        await alice.publish(TOPIC, 4)

        after = await clients.connect(broker.url, "bob")
        given: Position | dict[str, Any]
        for given in (stored, stored._asdict()):
            async with after.subscription(TOPIC, resume_from=given) as subscription:
                heard = [await within(anext(subscription)) for _ in range(3)]
                assert [message.data for message in heard] == [2, 3, 4]
                assert all(message.meta.is_replay for message in heard)

    @pytest.mark.parametrize(
        "options",
        [
            {"resume_from": "here"},
            {"resume_from": {"epoch": "x"}},
            {"resume_from": ("x", -1)},
            {"resume_from": ("x", 1 << 53)},
            {"resume_from": ("x" * 65, 1)},
            {"history": 0},
            {"history": 1_001},
            {"history": "all"},
        ],
        ids=str,
    )
    async def test_what_is_none(self, clients: Clients, options: dict[str, Any]) -> None:
        """It is refused where it was written, connected or not."""
        client = clients.make("ws://127.0.0.1:9/ws")
        with pytest.raises(ConfigError):
            client.subscription(TOPIC, **options)
        with pytest.raises(ConfigError):
            await client.subscribe(TOPIC, options)

    async def test_history(self, connect: Connect) -> None:
        """The newest twenty of thirty (F-08)."""
        alice, bob = await connect("alice"), await connect("bob")
        for number in range(30):
            await alice.publish(TOPIC, number)
        async with bob.subscription(TOPIC, history=20) as subscription:
            heard = [await within(anext(subscription)) for _ in range(20)]
            assert [message.data for message in heard] == list(range(10, 30))


async def test_a_repeat(connect: Connect) -> None:
    """A publish sent again under its reference is delivered once, and told as such (F-09)."""
    alice, bob = await connect("alice"), await connect("bob")
    messages = Heard()
    bob.on(TOPIC, messages)
    assert await outcome(bob.subscribe, TOPIC) is None
    receipts = [await alice.publish(TOPIC, "once", msg_ref="order-7") for _ in range(3)]
    assert [receipt.outcome for receipt in receipts] == ["accepted", "duplicate", "duplicate"]
    assert {receipt.level for receipt in receipts} == {"memory"}
    await settle(bob)
    assert [data for data, _ in messages.rest()] == ["once"]


async def test_a_trace(connect: Connect) -> None:
    """It comes with the message; what is none is refused at the call (features 1)."""
    alice, bob = await connect("alice"), await connect("bob")
    messages = Heard()
    bob.on(TOPIC, messages)
    assert await outcome(bob.subscribe, TOPIC) is None
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await alice.publish(TOPIC, 1, trace=trace)
    _, meta = await messages.next()
    assert meta.trace == trace
    with pytest.raises(NoLagServerError, match="traceparent"):
        await alice.publish(TOPIC, 1, trace="yesterday")


async def test_features_that_are_none(clients: Clients) -> None:
    """They are refused, with those that there are."""
    with pytest.raises(ConfigError, match="recover"):
        await clients.connect("ws://127.0.0.1:9/ws", features=["time travel"])


async def test_hints(clients: Clients, scripted: ScriptedBroker) -> None:
    """Attempts wait while the program says that there is no use in any (client-api 10.3)."""
    client, link = await clients.link(scripted)
    client.notify_offline()
    link.cut()
    await until(lambda: client.state == "suspended")
    client.notify_online()
    link = await scripted.link()
    await until(lambda: client.connected)
    client.suspend()
    link.cut()
    await until(lambda: client.state == "suspended")
    client.resume()
    await scripted.link()
    await until(lambda: client.connected)


async def test_several_rooms(tmp_path: Path, clients: Clients) -> None:
    """One connection is present in all of them (F-11)."""
    grant(tmp_path, tokens())
    broker = Broker(tmp_path)
    try:
        alice, bob = [await clients.connect(broker.url, name) for name in ("alice", "bob")]
        replaced = Heard()
        alice.on("presence:replaced", replaced)
        rooms = [alice.set_app("demo").set_room(name) for name in ("general", "kitchen", "garden")]
        for number, room in enumerate(rooms):
            await room.set_presence({"seat": number})
        for number, room in enumerate(rooms):
            there = bob.set_app("demo").set_room(room.prefix.removeprefix("demo/"))
            await until_present(bob, there, "alice", {"seat": number})
        assert replaced.is_silent()
        alice.disconnect()
    finally:
        broker.kill()


async def until_present(client: NoLag, room: Any, who: str, presence: dict[str, Any]) -> None:
    """Ask until somebody is in a room, with this presence."""
    while True:
        await settle(client)
        present = {actor.actor_token_id: actor.presence for actor in await room.fetch_presence()}
        if present.get(who) == presence:
            return
