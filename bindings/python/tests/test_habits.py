"""What Python programs do with a client: handlers, threads, loops, subclasses."""

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.broker import Broker, Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.scripted import ScriptedBroker, silent
from nolag import (
    ConfigError,
    ConnectionStatus,
    EmitOptions,
    MessageMeta,
    NoLag,
    NoLagError,
    NoLagOptions,
    NotConnectedError,
    QoS,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"


class TestHandlers:
    """What may be a handler."""

    async def test_numbers_of_parameters(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """None for `connect` and `reconnect`, one for `disconnect` and `error` (API-085)."""
        client = clients.make(scripted.url)
        calls: list[Any] = []
        errors = Heard()
        client.on("connect", lambda: calls.append("connect"))
        client.on("connected", lambda: calls.append("connected"))
        client.on("reconnect", lambda: calls.append("reconnect"))
        client.on("disconnect", lambda _reason: calls.append("disconnect"))
        client.on("disconnected", lambda: calls.append("disconnected"))
        client.on("reconnecting", calls.append)
        client.on("error", errors)
        await client.connect()
        (await scripted.link()).cut()
        await until(lambda: "reconnect" in calls)
        client.disconnect()
        # The aliases are those of the published client's README, which fail officially.
        assert calls == [
            "connect",
            "connected",
            "disconnect",
            "disconnected",
            1,
            "connect",
            "connected",
            "reconnect",
            "disconnect",
            "disconnected",
        ]
        assert not [error for error in errors.rest() if error.code == "handler"]

    async def test_a_disconnected_handler_of_the_readme(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """The README shows `lambda: print("Disconnected")`, without a parameter (section 13)."""
        client, _ = await clients.link(scripted)
        told, errors = [], Heard()
        client.on("error", errors)
        client.on("disconnected", lambda: told.append("disconnected"))
        client.disconnect()
        assert told == ["disconnected"]

    async def test_a_handler_in_the_place_of_options(self, connect: Connect) -> None:
        """As the published README has it, which fails officially (API-086)."""
        alice, bob = await connect("alice"), await connect("bob")
        first, second, told = Heard(), Heard(), Heard()
        await bob.subscribe("demo/general/one", first)
        await bob.subscribe("demo/general/two", second, SubscribeOptions(filters=["red"]))
        await bob.subscribe("demo/general/three", second, told)
        assert await told.next() is None
        await alice.publish("demo/general/one", 1)
        for name in ("blue", "red"):
            await alice.publish("demo/general/two", name, filter=name)
        assert (await first.next())[0] == 1
        assert (await second.next())[0] == "red"
        room = bob.set_app("demo").set_room("general")
        await room.subscribe("four", first)
        await alice.publish("demo/general/four", 4)
        assert (await first.next())[0] == 4

    async def test_as_a_decorator(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`on` without a handler decorates one, and leaves it what it is."""
        client, link = await clients.link(scripted)
        heard = Heard()

        @client.on(TOPIC)
        async def handle(data: Any, meta: MessageMeta) -> None:
            heard(data, meta.msg_id)

        assert asyncio.iscoroutinefunction(handle)
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 1, msgId="m-1")
        assert await heard.next() == (1, "m-1")

    async def test_they_run_on_the_loop(self, connect: Connect) -> None:
        """In the thread and the loop that called `connect`."""
        alice = await connect("alice")
        here = (threading.get_ident(), asyncio.get_running_loop())
        where = Heard()

        def handle(_data: Any, _meta: Any) -> None:
            where(threading.get_ident(), asyncio.get_running_loop())

        async def handle_later(_data: Any, _meta: Any) -> None:
            where(threading.get_ident(), asyncio.get_running_loop())

        alice.on(TOPIC, handle).on(TOPIC, handle_later)
        assert await outcome(alice.subscribe, TOPIC) is None
        await alice.emit(TOPIC, 1)
        assert await where.many(2) == [here, here]

    async def test_coroutines_end_with_the_client(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """They are the client's, and cancelled when it is closed."""
        client, link = await clients.link(scripted)
        started, ended = Heard(), Heard()

        async def handle(_data: Any, _meta: Any) -> None:
            started("started")
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended("ended")
                raise

        client.on(TOPIC, handle)
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 1)
        await started.next()
        await client.close()
        await ended.next()

    async def test_a_handler_that_closes(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Closing from within, awaited, does not wait for itself (FC-20, FC-40)."""
        client, link = await clients.link(scripted)
        closed = Heard()

        async def handle(_data: Any, _meta: Any) -> None:
            await client.close()
            closed(client.state)

        client.on(TOPIC, handle)
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 1)
        assert await closed.next() == "closed"

    async def test_methods_of_objects_are_let_go(self, clients: Clients) -> None:
        """`off` lets go of a handler and what it belongs to (FC-08)."""
        client = clients.make("ws://127.0.0.1:9/ws")

        class Thing:
            alive = 0

            def __init__(self) -> None:
                Thing.alive += 1

            def __del__(self) -> None:
                Thing.alive -= 1

            def handle(self, *_args: Any) -> None: ...

        thing = Thing()
        for _ in range(10):
            thing = Thing()
            client.on(TOPIC, thing.handle).on("error", thing.handle).on_any(thing.handle)
            client.off(TOPIC, thing.handle).off("error", thing.handle).off_any(thing.handle)
        client.on(TOPIC, thing.handle).off(TOPIC)
        del thing
        gc.collect()
        assert Thing.alive == 0

    async def test_context_variables(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A handler may set one without others seeing it where they should not."""
        client, link = await clients.link(scripted)
        variable = contextvars.ContextVar("variable", default=0)
        seen = Heard()

        async def handle(data: Any, _meta: Any) -> None:
            seen(variable.get())
            variable.set(data)

        client.on(TOPIC, handle)
        await client.subscribe(TOPIC)
        for number in (1, 2):
            await link.message(TOPIC, number)
        assert await seen.many(2) == [0, 0]


class TestOptionsAsWritten:
    """The ways to give options."""

    @pytest.mark.parametrize("form", ["dataclass", "mapping", "keywords", "positional", "both"])
    async def test_of_a_client(self, broker: Broker, form: str) -> None:
        """`nolag-agents` gives keywords, others what they like (client-api 16)."""
        match form:
            case "dataclass":
                client = NoLag(
                    "dev-token-alice", NoLagOptions(url=broker.url, qos=QoS.EXACTLY_ONCE)
                )
            case "mapping":
                client = NoLag("dev-token-alice", {"url": broker.url, "qos": 2})
            case "keywords":
                client = NoLag("dev-token-alice", url=broker.url, qos=QoS.EXACTLY_ONCE)
            case "positional":
                options = NoLagOptions(broker.url, True, 1.0, 3, 20.0, False, False, QoS(2))
                client = NoLag("dev-token-alice", options)
            case _:
                client = NoLag("dev-token-alice", options={"url": broker.url, "qos": 0}, qos=2)
        async with client:
            receipt = await client.publish(TOPIC, 1)
            assert receipt.qos == 2

    async def test_of_a_publish(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The published WebRTC helper gives a mapping, which fails officially."""
        client, link = await clients.link(scripted)
        await client.emit(TOPIC, 1, {"echo": False})
        assert (await link.next("publish"))["echo"] is False
        await client.emit(TOPIC, 1, EmitOptions(QoS.AT_MOST_ONCE, True, False, "f"))
        frame = await link.next("publish")
        assert (frame["qos"], frame["retain"], frame["echo"], frame["filter"]) == (
            0,
            True,
            False,
            "f",
        )

    async def test_two_clients_of_one_dataclass(self, broker: Broker) -> None:
        """The options are not theirs; `disconnect` does not change them, as officially it does."""
        options = NoLagOptions(url=broker.url)
        async with NoLag("dev-token-alice", options):
            async with NoLag("dev-token-bob", options) as bob:
                bob.disconnect()
            assert options == NoLagOptions(url=broker.url)


class TestSubclassing:
    """The class may be extended and patched."""

    async def test_a_subclass(self, broker: Broker) -> None:
        """Its methods are called, and its attributes kept."""

        class Chat(NoLag):
            def __init__(self, name: str, url: str) -> None:
                super().__init__(f"dev-token-{name}", url=url)
                self.said: list[Any] = []

            def on(self, event: str, handler: Any = None) -> Any:
                self.said.append(event)
                return super().on(event, handler)

            async def say(self, text: str) -> None:
                await self.emit(TOPIC, {"text": text})

        async with Chat("alice", broker.url) as chat:
            messages = Heard()
            chat.on(TOPIC, messages)
            await chat.subscribe(TOPIC)
            await chat.say("hello")
            assert (await messages.next())[0] == {"text": "hello"}
            assert TOPIC in chat.said
            assert "Chat" in repr(chat)

    async def test_the_registries(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """What `nolag-signal` writes to is what is read (client-api 16)."""
        client, link = await clients.link(scripted)
        assert isinstance(client._event_handlers, dict)  # noqa: SLF001
        assert isinstance(client._message_handlers, dict)  # noqa: SLF001
        event, message, anything = Heard(), Heard(), Heard()
        client._event_handlers["replay:start"] = {event}  # noqa: SLF001
        client._message_handlers[TOPIC] = {message}  # noqa: SLF001
        client._any_handlers = {anything}  # noqa: SLF001
        await client.subscribe(TOPIC)
        await link.send("replayStart", count=1)
        await link.message(TOPIC, 1)
        await event.next()
        assert (await message.next())[0] == 1
        assert (await anything.next())[1] == 1
        client.off(TOPIC, message)
        await link.message(TOPIC, 2)
        assert (await anything.next())[1] == 2
        assert message.is_silent()


class TestThreads:
    """Calls from elsewhere than the client's loop."""

    async def test_publishing(self, connect: Connect) -> None:
        """`threadsafe` gives futures that a thread can wait for."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = Heard()
        bob.on(TOPIC, messages)
        assert await outcome(bob.subscribe, TOPIC) is None

        def work(number: int) -> str:
            return alice.threadsafe.publish(TOPIC, number).result(20).outcome

        with ThreadPoolExecutor(4) as pool:
            loop = asyncio.get_running_loop()
            work_done = [loop.run_in_executor(pool, work, number) for number in range(40)]
            assert await within(asyncio.gather(*work_done)) == ["accepted"] * 40
        assert sorted([data for data, _ in await messages.many(40)]) == list(range(40))

    async def test_errors_reach_the_thread(self, connect: Connect) -> None:
        """They are raised by `result`."""
        alice = await connect("alice")

        def work() -> None:
            alice.threadsafe.publish("elsewhere/general/messages", 1).result(20)

        with pytest.raises(NoLagError) as raised:
            await asyncio.to_thread(work)
        assert raised.value.server_code == 42940
        with pytest.raises(NotConnectedError):
            NoLag("token", url="ws://127.0.0.1:9/ws").threadsafe.publish(TOPIC, 1)

    async def test_plain_calls_from_another_loop(self, connect: Connect) -> None:
        """Each says what to do instead (Points decided 12)."""
        alice = await connect("alice")
        calls: list[Any] = [
            lambda: alice.publish(TOPIC, 1),
            lambda: alice.emit(TOPIC, 1),
            lambda: alice.subscribe(TOPIC),
            lambda: alice.unsubscribe(TOPIC),
            lambda: alice.set_filters(TOPIC, ["a"]),
            lambda: alice.set_presence({}, "general"),
            lambda: alice.fetch_presence("general"),
            lambda: alice.set_app("demo").set_lobby("lounge").subscribe(),
            alice.connect,
            alice.flush,
        ]

        async def call(make: Any) -> None:
            await make()

        def call_elsewhere(make: Any) -> None:
            asyncio.run(call(make))

        for make in calls:
            with pytest.raises(ConfigError, match=r"loop|thread") as raised:
                await asyncio.to_thread(call_elsewhere, make)
            assert raised.value.code == "unsupported_runtime"
        assert (await alice.publish(TOPIC, 1)).outcome == "accepted"

    @pytest.mark.parametrize("how", ["thread", "handler", "loop"])
    async def test_closing_from_anywhere(
        self, clients: Clients, scripted: ScriptedBroker, how: str
    ) -> None:
        """The broker sees it, a second time is nothing, and later calls say so (FC-40)."""
        client, link = await clients.link(scripted)
        if how == "thread":
            await asyncio.to_thread(client.disconnect)
        elif how == "loop":
            client.disconnect()
        else:
            client.on(TOPIC, lambda *_: client.disconnect())
            await client.subscribe(TOPIC)
            await link.message(TOPIC, 1)
        await within(link.closed.wait())
        await until(lambda: client.state == "closed")
        client.disconnect()
        await asyncio.to_thread(client.disconnect)
        with pytest.raises(NoLagError) as raised:
            await client.publish(TOPIC, 1)
        assert raised.value.code == "closed"

    async def test_collected_by_another_thread(self, scripted: ScriptedBroker) -> None:
        """A client's last reference may be anybody's (FC-40)."""
        box: list[Any] = []

        async def use() -> Any:
            client = NoLag("dev-token-alice", url=scripted.url)
            await client.connect()
            box.append(client)
            return await scripted.link()

        link = await use()
        # The task's frame is gone with the next turn.
        await asyncio.sleep(0)

        def drop() -> None:
            box.clear()
            gc.collect()

        await asyncio.to_thread(drop)
        await within(link.closed.wait())

    async def test_a_busy_loop(self, connect: Connect) -> None:
        """A handler that blocks for a while holds up, and loses nothing."""
        alice, bob = await connect("alice"), await connect("bob")
        seen: list[int] = []

        def handle(data: int, _meta: Any) -> None:
            if data == 3:
                time.sleep(0.2)
            seen.append(data)

        bob.on(TOPIC, handle)
        assert await outcome(bob.subscribe, TOPIC) is None
        for number in range(50):
            await alice.emit(TOPIC, number, callback=lambda _error: None)
        await until(lambda: len(seen) == 50)
        assert seen == list(range(50))


class TestCancelling:
    """Tasks that are cancelled while they wait."""

    async def test_a_queued_publish(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is withdrawn (API-078)."""
        client, _ = await clients.link(scripted)
        await scripted.shut()
        await until(lambda: client.status is ConnectionStatus.RECONNECTING)
        publishing = [asyncio.create_task(client.publish(TOPIC, number)) for number in range(3)]
        await until(lambda: client.stats().queue_messages == 3)
        publishing[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing[1]
        await scripted.open()
        for number in (0, 2):
            assert (await within(publishing[number])).outcome == "accepted"
        link = await scripted.link()
        assert [frame["data"] for frame in link.received("publish")] == [0, 2]

    async def test_one_in_flight(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It completes in the background (API-078)."""
        scripted.rules["publish"] = silent
        client, link = await clients.link(scripted)
        publishing = asyncio.create_task(client.publish(TOPIC, 1))
        frame = await link.next("publish")
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert client.stats().in_flight == 1
        await link.send("published", topic=TOPIC, msgRef=frame["msgRef"])
        await until(lambda: client.stats().in_flight == 0)

    async def test_time_outs_of_one_s_own(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`asyncio.wait_for` and `asyncio.timeout` may end every wait."""
        for kind in ("publish", "subscribe", "getPresence", "lobbySubscribe", "unsubscribe"):
            scripted.rules[kind] = silent
        client, link = await clients.link(scripted)
        subscription = client.subscription("demo/general/other")
        calls: list[Any] = [
            client.publish(TOPIC, 1),
            client.emit(TOPIC, 1),
            client.subscribe(TOPIC),
            client.fetch_presence("general"),
            client.set_app("demo").set_lobby("lounge").subscribe(),
            client.flush(),
            subscription.ready(),
            anext(subscription),
        ]
        for call in calls:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(call, 0.02)
        scripted.rules.clear()
        await settle(client)
        assert link.closed.is_set() is False

    async def test_random_moments(self, broker: Broker) -> None:
        """Whenever a program is cancelled, nothing is left of it (API-080, reduced)."""

        async def program() -> None:
            async with NoLag("dev-token-alice", url=broker.url) as client:
                client.on(TOPIC, lambda _data, _meta: None)
                await client.subscribe(TOPIC)
                await client.set_presence({"x": 1}, "general")
                async with client.subscription("demo/general/other") as subscription:
                    await client.publish("demo/general/other", 1)
                    await anext(subscription)
                await client.fetch_presence("general")
                await client.emit(TOPIC, 2)

        before = len(asyncio.all_tasks())
        # How many turns of the loop a whole run takes, so that every moment is met.
        for turns in range(150):
            await cancelled(program(), turns % 75, pause=0 if turns < 75 else 0.0002)
        gc.collect()
        for _ in range(100):
            if len(asyncio.all_tasks()) == before:
                break
            await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) == before
        watcher = NoLag("dev-token-bob", url=broker.url)
        async with watcher:
            await until_empty(watcher)


async def cancelled(program: Coroutine[Any, Any, None], turns: int, pause: float) -> None:
    """Run a program for so many turns of the loop, and cancel it; it may end before."""
    task = asyncio.create_task(program)
    for _ in range(turns):
        await asyncio.sleep(pause)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None


async def until_empty(watcher: NoLag) -> None:
    """Wait until the broker knows of nobody in the room any more."""
    for _ in range(500):
        if not await watcher.fetch_presence("general"):
            return
        await asyncio.sleep(0.02)
    pytest.fail("somebody is still there")
