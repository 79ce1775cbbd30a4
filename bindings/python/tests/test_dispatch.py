"""Who is told of a message, in which order, and what becomes of failures."""

import asyncio
from typing import Any

import pytest
from kit.broker import Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.scripted import Frame, Link, ScriptedBroker, agree
from nolag import (
    EmitOptions,
    HandlerError,
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
        assert not meta.requires_ack  # with redelivery granted only such groups are asked
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
