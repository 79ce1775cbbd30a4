"""Messages: their order, their handlers, their acknowledgement."""

import asyncio
import json
import random
from typing import Any

import pytest
from kit.broker import Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.scripted import Frame, Link, ScriptedBroker, agree
from nolag import (
    ConfigError,
    EmitOptions,
    HandlerError,
    Message,
    NoLagServerError,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"


class TestDispatch:
    """Who is told of a message, and when."""

    async def test_what_comes_with_a_message(self, connect: Connect) -> None:
        """Sender, time, id and filter, as the broker sent them (client-api 8.7)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = Heard()
        bob.on(TOPIC, messages)
        assert await outcome(bob.subscribe, TOPIC) is None
        await alice.emit(TOPIC, {"text": "hello"}, EmitOptions(filter="vip"))
        data, meta = await messages.next()
        assert data == {"text": "hello"}
        assert (meta.sender, meta.filter, meta.topic) == ("alice", "vip", TOPIC)
        assert meta.msg_id
        assert meta.requires_ack
        assert meta.timestamp
        assert meta.received_at
        assert not meta.is_replay
        assert not meta.retained
        assert "alice" in repr(meta)

    async def test_the_kinds_of_handlers(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The topic's own in their order, then those for all, then iterators (API-053)."""
        client, link = await clients.link(scripted)
        order: list[str] = []
        client.on_any(lambda topic, data, meta: order.append(f"any {topic} {data} {meta.topic}"))
        client.on("*", lambda *_: order.append("star"))
        client.on(TOPIC, lambda *_: order.append("first"))
        client.on(TOPIC, lambda *_: order.append("second"))

        async def iterate() -> None:
            async for message in client.messages(TOPIC):
                order.append(f"iterator {message.data}")
                return

        iterating = asyncio.create_task(iterate())
        await link.next("subscribe")
        await link.message(TOPIC, 1)
        await within(iterating)
        any_handlers = {f"any {TOPIC} 1 {TOPIC}", "star"}
        assert order[:2] == ["first", "second"]
        assert set(order[2:4]) == any_handlers
        assert order[4:] == ["iterator 1"]

    async def test_many_messages(self, connect: Connect) -> None:
        """Each topic's come in order, with handlers of every kind (API-053, reduced)."""
        alice, bob = await connect("alice"), await connect("bob")
        topics = [f"demo/general/{name}" for name in ("one", "two", "three")]
        seen: dict[str, list[int]] = {topic: [] for topic in topics}
        everything: list[tuple[str, int]] = []

        async def later(data: Any, _meta: Any) -> None:
            await asyncio.sleep(0)
            seen[topics[1]].append(data)

        async def iterate() -> None:
            async for message in bob.messages(topics[2]):
                seen[topics[2]].append(message.data)
                if len(seen[topics[2]]) == 300:
                    return

        bob.on(topics[0], lambda data, _meta: seen[topics[0]].append(data))
        bob.on(topics[1], later)
        bob.on_any(lambda topic, data, _meta: everything.append((topic, data)))
        for topic in topics[:2]:
            assert await outcome(bob.subscribe, topic) is None
        iterating = asyncio.create_task(iterate())
        subscription = bob.subscription(topics[2])
        await within(subscription.ready())
        sent = [(topics[number % 3], number) for number in range(900)]
        for topic, number in sent:
            await alice.emit(topic, number, callback=lambda _error: None)
        await within(iterating)
        await until(lambda: len(everything) == 900 and len(seen[topics[1]]) == 300)
        assert everything == sent
        for place, topic in enumerate(topics):
            assert seen[topic] == list(range(place, 900, 3))

    async def test_a_handler_that_fails(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The others are called all the same, and `error` tells once (API-054, FC-21, K-041)."""
        client, link = await clients.link(scripted)
        first, third, errors = Heard(), Heard(), Heard()
        second: list[int] = []

        def fails_once(data: int, _meta: Any) -> None:
            second.append(data)
            if data == 5:
                message = "five"
                raise ZeroDivisionError(message)

        async def fails_later(data: int, _meta: Any) -> None:
            if data == 7:
                message = "seven"
                raise KeyError(message)

        client.on("error", errors)
        for handler in (first, fails_once, fails_later, third):
            client.on(TOPIC, handler)
        await client.subscribe(TOPIC)
        for number in range(10):
            await link.message(TOPIC, number, msgId=f"m-{number}", requiresAck=True)
        for heard in (first, third):
            assert [data for data, _ in await heard.many(10)] == list(range(10))
        assert second == list(range(10))
        reported = await errors.many(2)
        assert all(isinstance(error, HandlerError) for error in reported)
        assert {error.code for error in reported} == {"handler"}
        assert [(error.topic, error.msg_id) for error in reported] == [
            (TOPIC, "m-5"),
            (TOPIC, "m-7"),
        ]
        assert [type(error.__cause__) for error in reported] == [ZeroDivisionError, KeyError]
        assert errors.is_silent()
        assert client.connected

    async def test_a_failure_that_nobody_listens_to(
        self, clients: Clients, scripted: ScriptedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged, and breaks nothing (client-api 13)."""
        client, link = await clients.link(scripted)
        messages = Heard()

        def fails(_data: Any, _meta: Any) -> None:
            message = "nobody listens"
            raise ZeroDivisionError(message)

        client.on(TOPIC, fails).on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 1)
        assert (await messages.next())[0] == 1
        await until(lambda: "nobody listens" in caplog.text)

    async def test_an_error_handler_that_fails(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """It is not called for its own failure without end."""
        client, link = await clients.link(scripted)
        calls: list[Exception] = []

        def fails(*args: Any) -> None:
            calls.append(args[0])
            raise ZeroDivisionError

        messages = Heard()
        client.on("error", fails).on(TOPIC, fails).on(TOPIC, messages)
        await client.subscribe(TOPIC)
        for number in range(2):
            await link.message(TOPIC, number)
            await messages.next()
        assert len(calls) <= 6

    async def test_changing_handlers_within_one(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """It shows with the next message (API-055, K-042)."""
        client, link = await clients.link(scripted)
        late, last = Heard(), Heard()

        def swap(_data: Any, _meta: Any) -> None:
            client.off(TOPIC, swap)
            client.on(TOPIC, late)
            client.off(TOPIC, doomed)

        doomed = Heard()
        client.on(TOPIC, swap).on(TOPIC, doomed).on(TOPIC, last)
        await client.subscribe(TOPIC)
        for number in (1, 2):
            await link.message(TOPIC, number)
        assert [data for data, _ in await last.many(2)] == [1, 2]
        assert [data for data, _ in doomed.rest()] == [1]
        assert [data for data, _ in late.rest()] == [2]

    async def test_one_handler_twice(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is called once (API-055, FC-08)."""
        client, link = await clients.link(scripted)
        twice, last = Heard(), Heard()
        client.on(TOPIC, twice).on(TOPIC, twice).on(TOPIC, last)
        client.on_any(twice).on_any(twice)
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 1)
        await last.next()
        await until(lambda: not twice.is_silent())
        await settle(client)
        assert len(twice.rest()) == 2
        client.off(TOPIC, twice).off_any(twice)
        await link.message(TOPIC, 2)
        await last.next()
        await settle(client)
        assert twice.is_silent()

    async def test_handlers_stay(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`unsubscribe` leaves them, and they do not pile up (FC-08, client-api 6)."""
        client, _ = await clients.link(scripted)
        link = scripted.links[0]
        messages = Heard()
        client.on(TOPIC, messages)
        for number in range(20):
            await client.subscribe(TOPIC, messages)
            await link.next("subscribe")
            await link.message(TOPIC, number)
            assert (await messages.next())[0] == number
            await client.unsubscribe(TOPIC)
            await link.next("unsubscribe")
        await client.subscribe(TOPIC)
        await link.message(TOPIC, "last")
        assert (await messages.next())[0] == "last"
        assert messages.is_silent()
        assert len(client._message_handlers[TOPIC]) == 1  # noqa: SLF001 — official name

    async def test_waiting_inside_a_handler(self, connect: Connect) -> None:
        """Calls made and awaited in handlers come to an end (FC-20)."""
        desk, caller = await connect("alice"), await connect("bob")
        for client, topics in ((desk, ("req", "req2")), (caller, ("res", "res2"))):
            for topic in topics:
                assert await outcome(client.subscribe, f"demo/general/{topic}") is None
        answers = Heard()
        caller.on("demo/general/res", answers).on("demo/general/res2", answers)

        async def answer(data: Any, meta: Any) -> None:
            topic = meta.topic.replace("req", "res")
            receipt = await desk.publish(topic, data)
            assert receipt.outcome == "accepted"

        desk.on("demo/general/req", answer).on("demo/general/req2", answer)
        for number in range(100):
            for topic in ("req", "req2"):
                await caller.emit(f"demo/general/{topic}", number, callback=lambda _error: None)
        answered = [data for data, _ in await answers.many(200)]
        assert sorted(answered) == sorted([*range(100), *range(100)])

    async def test_everything_else_inside_a_handler(self, connect: Connect) -> None:
        """Subscribing, presence and the end, awaited where a message is handled (FC-20)."""
        alice, bob = await connect("alice"), await connect("bob")
        done = Heard()

        async def handle(_data: Any, _meta: Any) -> None:
            assert await outcome(bob.subscribe, "demo/general/other") is None
            assert await outcome(bob.unsubscribe, "demo/general/other") is None
            await bob.set_presence({"busy": True}, "general")
            assert len(await bob.fetch_presence("general")) == 1
            await bob.disconnect()
            done(bob.connected)

        bob.on(TOPIC, handle)
        assert await outcome(bob.subscribe, TOPIC) is None
        await alice.publish(TOPIC, 1)
        assert await done.next() is False

    @pytest.mark.parametrize("verb", ["subscribe", "emit", "publish"])
    async def test_what_follows_an_answer(
        self, clients: Clients, scripted: ScriptedBroker, verb: str
    ) -> None:
        """A handler that is added after the await hears what came after the answer (client-api 1).

        Officially the call ends when it is written, so that no message can come before.
        """

        async def answer(link: Link, frame: Frame) -> None:
            # As one segment, as a broker writes what is ready.
            link.hold()
            await agree(link, frame)
            await link.message(TOPIC, "at once")
            link.release()

        client, link = await clients.link(scripted)
        messages = Heard()
        if verb != "subscribe":
            await client.subscribe(TOPIC)
        scripted.rules["publish" if verb == "emit" else verb] = answer
        for _ in range(20):
            if verb == "subscribe":
                await client.subscribe(TOPIC)
            else:
                await getattr(client, verb)(TOPIC, "request")
            client.on(TOPIC, messages)
            assert (await messages.next())[0] == "at once"
            client.off(TOPIC, messages)
            if verb == "subscribe":
                await client.unsubscribe(TOPIC)
        assert not link.closed.is_set()

    async def test_wildcards(self, connect: Connect) -> None:
        """A message is dispatched by the subscription that it came for (K-040)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages, exact = Heard(), Heard()
        bob.on("demo/general/+", messages).on("demo/general/news", exact)
        assert await outcome(bob.subscribe, "demo/general/+") is None
        await alice.emit("demo/general/news", "one")
        data, meta = await messages.next()
        assert (data, meta.topic) == ("one", "demo/general/+")
        assert meta.source_topic == "demo/general/news"
        assert exact.is_silent()

    async def test_silence_after_the_end(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A thousand messages on their way reach nobody after `disconnect` (API-008)."""
        client, link = await clients.link(scripted)
        messages, first = Heard(), asyncio.Event()

        def handle(data: Any, _meta: Any) -> None:
            messages(data)
            if data == 100:
                client.disconnect()
                first.set()

        client.on(TOPIC, handle).on_any(messages).on("error", messages).on("reconnecting", messages)
        iterated: list[Any] = []

        async def iterate() -> None:
            iterated.extend([message.data async for message in client.messages(TOPIC)])

        iterating = asyncio.create_task(iterate())
        await link.next("subscribe")
        for number in range(1000):
            await link.message(TOPIC, number)
        await within(first.wait())
        heard = len(messages.rest())
        await within(iterating)
        await within(link.closed.wait())
        assert messages.is_silent()
        assert heard <= 2 * 101
        assert len(iterated) <= 101

    async def test_closing_within_a_burst(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Nor after `close` (API-008)."""
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.next("subscribe")
        for number in range(1000):
            await link.message(TOPIC, number)
        await messages.next()
        await within(client.close())
        messages.rest()
        await asyncio.sleep(0.05)
        assert messages.is_silent()


class TestIterators:
    """`subscription` and `messages`."""

    async def test_a_subscription(self, connect: Connect) -> None:
        """It is a context and an iterator, and unsubscribes in the end."""
        alice, bob = await connect("alice"), await connect("bob")
        async with bob.subscription(TOPIC, filters=["red"]) as subscription:
            assert subscription.topic == TOPIC
            assert subscription.state == "active"
            assert subscription.position is None
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


class TestAcknowledging:
    """Which messages are acknowledged, and when."""

    async def test_by_itself(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """What asks for it is acknowledged after its handlers were called (K-043)."""
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 1)
        await link.message(TOPIC, 2, msgId="m-2")
        await link.message(TOPIC, 3, msgId="m-3", requiresAck=True)
        assert acknowledged(await link.next("ack", "batchAck")) == ["m-3"]
        await messages.many(3)

    async def test_what_comes_again(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A copy is acknowledged and not handed over (API-056, FC-10, K-045)."""
        client, first = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        for _ in range(2):
            await first.message(TOPIC, "once", msgId="m-1", requiresAck=True)
            assert acknowledged(await first.next("ack", "batchAck")) == ["m-1"]
        first.cut()
        second = await scripted.link()
        await second.next("subscribe")
        await second.message(TOPIC, "once", msgId="m-1", requiresAck=True)
        await second.message(TOPIC, "new", msgId="m-2", requiresAck=True)
        ids: list[str] = []
        while "m-2" not in ids:
            ids += acknowledged(await second.next("ack", "batchAck"))
        assert ids == ["m-1", "m-2"]
        assert [data for data, _ in messages.rest()] == ["once", "new"]
        assert client.stats().duplicates == 2

    async def test_after_the_handlers(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Then a handler that fails, also later, withholds it (API-057)."""
        client, link = await clients.link(scripted, ack_mode="after_handler")
        gate = asyncio.Event()
        started = Heard()

        async def handle(data: Any, _meta: Any) -> None:
            started(data)
            await gate.wait()
            if data == "bad":
                message = "bad"
                raise ValueError(message)

        client.on("error", lambda _error: None)
        client.on(TOPIC, handle)
        await client.subscribe(TOPIC)
        for number, data in enumerate(("good", "bad", "better")):
            await link.message(TOPIC, data, msgId=f"m-{number}", requiresAck=True)
        assert await started.next() == "good"
        await settle(client)
        assert not link.received("ack")
        # One after another, as decided for this mode.
        assert started.is_silent()
        gate.set()
        ids: list[str] = []
        while "m-2" not in ids:
            ids += acknowledged(await link.next("ack", "batchAck"))
        assert ids == ["m-0", "m-2"]

        await link.message(TOPIC, "bad", msgId="m-1", requiresAck=True)
        await started.many(2)
        assert await started.next() == "bad"

    async def test_by_hand(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Nothing is acknowledged but what the application says (API-057, K-044)."""
        client, link = await clients.link(scripted, ack_mode="manual")
        messages = Heard()
        client.on(TOPIC, messages)
        subscription = client.subscription(TOPIC)
        await within(subscription.ready())
        for number in range(3):
            await link.message(TOPIC, number, msgId=f"m-{number}", requiresAck=True)
        await messages.many(3)
        await settle(client)
        assert not link.received("ack")
        assert not link.received("batchAck")
        client.ack("m-1")
        assert acknowledged(await link.next("ack", "batchAck")) == ["m-1"]
        (await within(anext(subscription))).ack()
        assert acknowledged(await link.next("ack", "batchAck")) == ["m-0"]
        client.batch_ack(["m-2", "m-x"])
        assert (await link.next("batchAck"))["msgIds"] == ["m-2", "m-x"]

    async def test_gathered(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A burst is one frame, and what a loss overtook is sent later (API-058)."""
        client, first = await clients.link(scripted, ack_batch_interval=0.1)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        for number in range(5):
            await first.message(TOPIC, number, msgId=f"m-{number}", requiresAck=True)
        assert (await first.next("batchAck"))["msgIds"] == [f"m-{number}" for number in range(5)]
        await first.message(TOPIC, 5, msgId="m-5", requiresAck=True)
        await messages.many(6)
        first.cut()
        second = await scripted.link()
        assert acknowledged(await second.next("ack", "batchAck")) == ["m-5"]
        assert not first.received("ack")


def acknowledged(frame: dict[str, Any]) -> list[str]:
    """List the ids of an acknowledging frame."""
    return frame["msgIds"] if frame["type"] == "batchAck" else [frame["msgId"]]


class TestOtherFrames:
    """What is no message, and what is no frame."""

    @pytest.mark.parametrize("key", ["replayed", "count"])
    async def test_replay(self, clients: Clients, scripted: ScriptedBroker, key: str) -> None:
        """Its start, its progress and its end (API-059, K-046)."""
        client, link = await clients.link(scripted)
        started, ended, messages = Heard(), Heard(), Heard()
        client.on("replay:start", started).on("replay:end", ended).on(TOPIC, messages)
        await client.subscribe(TOPIC)
        assert not client.is_replaying
        await link.send("replayStart", count=2, oldestTimestamp=1, newestTimestamp=2)
        assert (await started.next())["count"] == 2
        assert client.is_replaying
        assert client.replay_progress is not None
        progress = client.replay_progress
        assert (progress["count"], progress["received"]) == (2, 0)
        for number in range(2):
            await link.message(TOPIC, number, msgId=f"m-{number}", isReplay=True)
            data, meta = await messages.next()
            assert (data, meta.is_replay) == (number, True)
            assert client.replay_progress["received"] == number + 1
        await link.send("replayEnd", **{key: 2})
        assert (await ended.next())["replayed"] == 2
        assert not client.is_replaying
        assert client.replay_progress is None

    async def test_hydration(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is an event of its own (API-062, K-047)."""
        client, link = await clients.link(scripted)
        hydrated, messages = Heard(), Heard()
        client.on("hydration", hydrated).on(TOPIC, messages).on_any(messages)
        await client.subscribe(TOPIC)
        await link.send("hydration", topic="messages", data={"open": 3})
        assert await hydrated.next() == ("messages", {"open": 3})
        assert messages.is_silent()

    async def test_what_it_does_not_know(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Unknown types, fields and values are passed over or on (API-061, K-039, K-062)."""
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.send("surprise", data=1)
        await link.send("disconnect", reason="just_kidding")
        await link.send("published", topic=TOPIC, msgRef="nobody-7")
        await link.message(TOPIC, 1, filter="#", surprise=[1, {"x": None}], isReplay=None)
        data, meta = await messages.next()
        assert (data, meta.filter, meta.is_replay) == (1, None, False)
        assert client.connected

    async def test_text_frames(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """JSON is a frame, too; other text is none (K-061)."""
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.send_raw("no json")
        await link.send_raw("[1, 2]")
        await link.send_raw(json.dumps({"type": "message", "topic": TOPIC, "data": {"x": [1.5]}}))
        assert (await messages.next())[0] == {"x": [1.5]}

    async def test_garbage(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It changes nothing, and is counted (API-060, reduced)."""
        seed = random.randrange(2**32)
        print("seed", seed)  # noqa: T201 — shown when the test fails
        dice = random.Random(seed)
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        before = client.stats().decode_errors
        for _ in range(5000):
            # 0xc1 is never used by MessagePack, so that this is a frame for nobody.
            await link.send_raw(b"\xc1" + dice.randbytes(dice.randrange(64)))
            await link.send_raw(dice.randbytes(dice.randrange(1, 64)))
        await link.message(TOPIC, "after")
        assert (await messages.next())[0] == "after"
        assert client.connected
        assert client.stats().decode_errors >= before + 5000
        assert scripted.attempts == 1

    async def test_a_grant_that_is_gone(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """An unsolicited `unsubscribed` is an error, and ends iteration with it (K-063)."""
        client, link = await clients.link(scripted)
        errors = Heard()
        client.on("error", errors)
        subscription = client.subscription(TOPIC)
        await within(subscription.ready())
        await link.send("unsubscribed", topic=TOPIC, reason="not_authorized")
        error = await errors.next()
        assert isinstance(error, NoLagServerError)
        assert (error.code, error.error, error.topic) == (42941, "access_revoked", TOPIC)
        with pytest.raises(NoLagServerError):
            await within(anext(subscription))
        assert subscription.state == "refused"


class TestSubscribing:
    """What the caller of `subscribe` and its kin is told."""

    async def test_the_answer_counts(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Not the sending (K-024)."""
        held: list[Any] = []
        scripted.rules["subscribe"] = lambda link, frame: held.append((link, frame))
        client, link = await clients.link(scripted)
        subscribed = Heard()
        await client.subscribe(TOPIC, callback=subscribed)
        await link.next("subscribe")
        await settle(client)
        assert subscribed.is_silent()
        _, frame = held[0]
        await link.send("subscribed", topic=TOPIC, loadBalance=False, msgRef=frame["msgRef"])
        assert await subscribed.next() is None

    async def test_options(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Each is in the frame; what the client's options say is the default."""
        client, link = await clients.link(scripted)
        options: Any
        for options, expected in (
            (None, {"qos": 1}),
            (SubscribeOptions(filters=["a", ["b", "c"]]), {"filters": ["a", ["b", "c"]]}),
            (
                SubscribeOptions(load_balance=True, load_balance_group="w"),
                {"loadBalance": True, "loadBalanceGroup": "w"},
            ),
            ({"qos": 2}, {"qos": 2}),
        ):
            await client.subscribe(TOPIC, options)
            frame = await link.next("subscribe")
            assert expected.items() <= frame.items()

        other, link = await clients.link(scripted, load_balance=True, load_balance_group="g", qos=0)
        assert (other.load_balanced, other.load_balance_group) == (True, "g")
        await other.subscribe(TOPIC)
        frame = await link.next("subscribe")
        assert (frame["qos"], frame["loadBalance"], frame["loadBalanceGroup"]) == (0, True, "g")

    async def test_subscribing_again(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Equal options cost no frame; others replace (client-api 6)."""
        client, link = await clients.link(scripted)
        for options in (None, None, SubscribeOptions(filters=["a"]), None):
            assert await outcome(client.subscribe, TOPIC, options) is None
        frames = link.received("subscribe")
        assert [frame.get("filters") or None for frame in frames] == [None, ["a"], None]

    async def test_quick_changes(self, connect: Connect) -> None:
        """The last wish wins, and every caller is told (FC-07)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages, told = Heard(), Heard()
        bob.on(TOPIC, messages)
        await bob.subscribe(TOPIC, callback=told)
        await bob.unsubscribe(TOPIC, callback=told)
        await bob.subscribe(TOPIC, callback=told)
        assert await told.many(3) == [None] * 3
        await alice.publish(TOPIC, "once")
        assert (await messages.next())[0] == "once"
        await settle(bob)
        assert messages.is_silent()

    async def test_a_refusal(self, connect: Connect) -> None:
        """The callback and the `error` event are told, once each (API-095, K-032)."""
        alice = await connect("alice")
        errors = Heard()
        alice.on("error", errors)
        error = await outcome(alice.subscribe, "elsewhere/general/messages")
        assert isinstance(error, NoLagServerError)
        assert (error.code, error.error) == (42940, "unknown_topic")
        assert (error.topic, bool(error.hint)) == ("elsewhere/general/messages", True)
        assert (await errors.next()).code == 42940
        await settle(alice)
        assert errors.is_silent()

    async def test_no_answer(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is told, and the wish stays (Appendix B)."""
        scripted.rules["subscribe"] = lambda _link, _frame: None
        client, link = await clients.link(scripted, ack_timeout=0.1)
        error = await outcome(client.subscribe, TOPIC)
        assert error.code == "ack_timeout"
        link.cut()
        await (await scripted.link()).next("subscribe")

    async def test_filters(self, connect: Connect) -> None:
        """They change while the subscription runs; groups are kept (K-056)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = Heard()
        bob.on(TOPIC, messages)
        options = SubscribeOptions(filters=["red", ["a", "b"]])
        assert await outcome(bob.subscribe, TOPIC, options) is None
        assert await outcome(bob.add_filters, TOPIC, ["blue"]) is None
        assert await outcome(bob.remove_filters, TOPIC, ["red"]) is None
        for value in ("red", "blue"):
            await alice.publish(TOPIC, value, filter=value)
        await alice.publish(TOPIC, "both", filters=["a", "b"])
        assert [data for data, _ in await messages.many(2)] == ["blue", "both"]
        assert await outcome(bob.set_filters, TOPIC, []) is None
        await alice.publish(TOPIC, "any", filter="red")
        assert (await messages.next())[0] == "any"

    @pytest.mark.parametrize(
        ("filters", "error"),
        [
            (["a/b"], "invalid_filter_chars (/, #, +, | not allowed)"),
            (["#"], "invalid_filter_chars (/, #, +, | not allowed)"),
            ([["a", "b|c"]], "invalid_filter_chars (/, #, +, | not allowed)"),
            ([f"f{number}" for number in range(101)], "too_many_filters (max 100)"),
        ],
        ids=["slash", "hash", "group", "many"],
    )
    async def test_filters_that_cannot_be(
        self, clients: Clients, scripted: ScriptedBroker, filters: list[Any], error: str
    ) -> None:
        """They are refused in the broker's words, without asking it (API-099, K-037)."""
        client, link = await clients.link(scripted)
        assert await outcome(client.subscribe, TOPIC) is None
        told = await outcome(client.set_filters, TOPIC, filters)
        assert isinstance(told, NoLagServerError)
        assert (told.error, told.code) == (error, 42960)
        told = await outcome(client.subscribe, TOPIC, SubscribeOptions(filters=filters))
        assert (told.error, told.code) == (error, 42960)
        await settle(client)
        assert not link.received("setFilters")
        assert len(link.received("subscribe")) == 1

    async def test_retained_messages(self, connect: Connect) -> None:
        """Who comes late gets the last one, marked; who comes again does not (X-26)."""
        alice, bob = await connect("alice"), await connect("bob")
        for text in ("first", "last"):
            await alice.publish(TOPIC, text, retain=True)
        messages = Heard()
        bob.on(TOPIC, messages)
        assert await outcome(bob.subscribe, TOPIC) is None
        data, meta = await messages.next()
        assert (data, meta.retained) == ("last", True)
        await bob.unsubscribe(TOPIC)
        assert await outcome(bob.subscribe, TOPIC) is None
        assert (await messages.next())[0] == "last"
        await alice.publish(TOPIC, "live")
        data, meta = await messages.next()
        assert (data, meta.retained) == ("live", False)
