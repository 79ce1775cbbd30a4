"""Messages as asynchronous iterators."""

import asyncio
from typing import Any

import pytest
from kit.broker import Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, within
from kit.scripted import ScriptedBroker
from nolag import (
    ConfigError,
    Message,
    NoLagServerError,
)

TOPIC = "demo/general/messages"


class TestIterators:
    """`subscription` and `messages`."""

    async def test_a_subscription(self, connect: Connect) -> None:
        """It is a context and an iterator, and unsubscribes in the end."""
        alice, bob = await connect("alice"), await connect("bob")
        async with bob.subscription(TOPIC, filters=["red"]) as subscription:
            assert subscription.topic == TOPIC
            assert subscription.state == "active"
            assert subscription.position is not None
            for filters in (["red"], ["blue"], ["red"]):
                await alice.publish(TOPIC, filters[0], filters=filters)
            message = await within(anext(subscription))
            assert isinstance(message, Message)
            assert (message.topic, message.data, message.meta.sender) == (TOPIC, "red", "alice")
            assert (await within(anext(subscription))).data == "red"
            await subscription.set_filters(["green"])
            await alice.publish(TOPIC, "green", filter="green")
            assert (await within(anext(subscription))).data == "green"
        assert subscription.state == "closed"
        messages = Heard()
        bob.on(TOPIC, messages)
        await alice.publish(TOPIC, "red", filter="red")
        await settle(bob)
        assert messages.is_silent()

    async def test_what_was_not_taken(self, connect: Connect) -> None:
        """What ended iterators had not taken keeps no places: the client reads on."""
        alice, bob = await connect("alice"), await connect("bob", receive_buffer=20)
        for _ in range(4):
            subscription = bob.subscription(TOPIC)
            await within(subscription.ready())
            for number in range(10):
                await alice.publish(TOPIC, number)
            await settle(bob)
            await bob.unsubscribe(TOPIC)
        messages = Heard()
        await bob.subscribe(TOPIC, messages)
        for number in range(30):
            await alice.publish(TOPIC, number)
            data, _ = await messages.next()
            assert data == number

    async def test_before_the_connection(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is wanted then, and made when there is one (Appendix B)."""
        client = clients.make(scripted.url)
        subscription = client.subscription(TOPIC)
        assert subscription.state == "pending"
        await client.connect()
        link = await scripted.link()
        await within(subscription.ready())
        assert subscription.state == "active"
        await link.message(TOPIC, 1)
        assert (await within(anext(subscription))).data == 1

    async def test_a_refused_one(self, connect: Connect) -> None:
        """It is raised where it is waited for; the client goes on."""
        alice = await connect("alice")
        subscription = alice.subscription("elsewhere/general/messages")
        with pytest.raises(NoLagServerError, match="unknown_topic"):
            await within(subscription.ready())
        with pytest.raises(NoLagServerError) as raised:
            await within(anext(subscription))
        assert raised.value.code == 42940
        assert subscription.state == "refused"
        with pytest.raises(NoLagServerError):
            async with alice.subscription("elsewhere/general/messages"):
                pytest.fail("there is no access")
        assert (await alice.publish(TOPIC, 1)).outcome == "accepted"

    async def test_leaving_the_loop(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The last user's leaving unsubscribes, another's does not (API-079)."""
        client, link = await clients.link(scripted)

        async def one() -> None:
            async for message in client.messages(TOPIC):
                assert message.data == "x"
                break

        first = asyncio.create_task(one())
        await link.next("subscribe")
        await link.message(TOPIC, "x")
        await within(first)
        assert (await link.next("unsubscribe"))["topic"] == TOPIC

        assert await outcome(client.subscribe, TOPIC) is None
        second = asyncio.create_task(one())
        await asyncio.sleep(0)
        await link.message(TOPIC, "x")
        await within(second)
        await settle(client)
        assert len(link.received("unsubscribe")) == 1

    async def test_two_iterators(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Each gets everything; the first to leave leaves the other alone (API-079)."""
        client, link = await clients.link(scripted)
        first, second = client.subscription(TOPIC), client.subscription(TOPIC)
        await within(asyncio.gather(first.ready(), second.ready()))
        assert len(link.received("subscribe")) == 1
        await link.message(TOPIC, 1)
        assert (await within(anext(first))).data == (await within(anext(second))).data == 1
        await first.unsubscribe()
        await link.message(TOPIC, 2)
        assert (await within(anext(second))).data == 2
        assert not link.received("unsubscribe")
        await second.unsubscribe()
        await link.next("unsubscribe")

    async def test_the_end_of_the_client(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Iteration ends, and is not an error (client-api 12.4)."""
        client, link = await clients.link(scripted)
        subscription = client.subscription(TOPIC)
        await within(subscription.ready())

        async def collect() -> list[Any]:
            return [message.data async for message in subscription]

        collecting = asyncio.create_task(collect())
        await link.message(TOPIC, 1)
        await asyncio.sleep(0.05)
        await client.close()
        assert await within(collecting) == [1]

    async def test_a_loss_is_not_the_end(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The same loop goes on when the connection is back."""
        client, link = await clients.link(scripted)
        subscription = client.subscription(TOPIC)
        await within(subscription.ready())
        await link.message(TOPIC, 1)
        assert (await within(anext(subscription))).data == 1
        link.cut()
        second = await scripted.link()
        await second.next("subscribe")
        await second.message(TOPIC, 2)
        assert (await within(anext(subscription))).data == 2

    async def test_a_slow_reader(self, connect: Connect) -> None:
        """It holds the broker up, and loses nothing (API-076, FC-22, reduced)."""
        alice, bob = await connect("alice"), await connect("bob", receive_buffer=16)
        async with bob.subscription(TOPIC, buffer=16) as subscription:
            publishing = asyncio.create_task(publish_many(alice, 2000))
            for number in range(2000):
                if number % 100 == 0:
                    await asyncio.sleep(0.01)
                assert (await within(anext(subscription))).data[0] == number
            await within(publishing)

    @pytest.mark.parametrize(
        ("overflow", "kept"),
        [("drop_oldest", list(range(92, 100))), ("drop_newest", list(range(8)))],
    )
    async def test_a_reader_that_may_miss(
        self, clients: Clients, scripted: ScriptedBroker, overflow: str, kept: list[int]
    ) -> None:
        """It is told how many, once, and others get them all (API-077)."""
        client, link = await clients.link(scripted)
        told, messages = Heard(), Heard()
        client.on("overflow", told).on(TOPIC, messages)
        subscription = client.subscription(TOPIC, buffer=8, overflow=overflow)
        await within(subscription.ready())
        for episode in (1, 2):
            for number in range(100):
                await link.message(TOPIC, number)
            assert [data for data, _ in await messages.many(100)] == list(range(100))
            assert [(await within(anext(subscription))).data for _ in range(8)] == kept
            waiting = asyncio.ensure_future(anext(subscription))
            assert await told.next() == {"topic": TOPIC, "dropped": 92}, episode
            await link.message(TOPIC, "caught up")
            assert (await within(waiting)).data == "caught up"
            await messages.next()
        assert told.is_silent()
        assert client.connected

    async def test_an_overflow_that_does_not_exist(self, connect: Connect) -> None:
        """It is told what there is."""
        alice = await connect("alice")
        with pytest.raises(ConfigError, match="drop_oldest"):
            alice.subscription(TOPIC, overflow="explode")


async def publish_many(client: Any, number: int) -> None:
    """Publish numbers, each with a kilobyte beside it, as fast as the broker takes them."""
    for value in range(number):
        await client.emit(TOPIC, [value, "x" * 1000], callback=lambda _error: None)
        if value % 500 == 0:
            await client.flush()
