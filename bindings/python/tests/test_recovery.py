"""What becomes of a client whose connection is lost."""

import asyncio
from typing import Any

import pytest
from kit.broker import Broker, Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.scripted import HEARTBEAT, Frame, Link, ScriptedBroker, agree, refuse, silent
from nolag import (
    AuthError,
    ConnectionStatus,
    EmitOptions,
    NoLag,
    NoLagServerError,
    QoS,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"

# All that happens around a loss, in the order in which it must (client-api 13).
LIFE = (
    "connecting",
    "connect",
    "disconnect",
    "reconnecting",
    "gap",
    "ready",
    "reconnect",
    "failed",
)


def record(client: NoLag) -> list[str]:
    """Keep the names of a client's events as they come."""
    names: list[str] = []
    for name in LIFE:
        client.on(name, lambda *_, name=name: names.append(name))
    return names


class TestRestarts:
    """A broker that is killed and comes back knows nothing; the client does."""

    async def test_every_kind_of_subscription(self, broker: Broker, connect: Connect) -> None:
        """Plain, QoS 2, filtered by OR and by AND, and shared: all go on (API-027, K-020)."""
        bob = await connect("bob")
        kinds = {
            "plain": None,
            "twice": SubscribeOptions(qos=QoS.EXACTLY_ONCE),
            "either": SubscribeOptions(filters=["red", "blue"]),
            "both": SubscribeOptions(filters=[["red", "blue"]]),
            "shared": SubscribeOptions(load_balance=True, load_balance_group="workers"),
        }
        messages = {name: Heard() for name in kinds}
        for name, options in kinds.items():
            bob.on(f"demo/general/{name}", messages[name])
            assert await outcome(bob.subscribe, f"demo/general/{name}", options) is None
        other = await connect("bob")
        others = Heard()
        other.on("demo/general/shared", others)
        assert await outcome(other.subscribe, "demo/general/shared", kinds["shared"]) is None

        back = [Heard(), Heard()]
        bob.on("reconnect", back[0])
        other.on("reconnect", back[1])
        await asyncio.to_thread(broker.restart)
        await back[0].next()
        await back[1].next()

        alice = await connect("alice")
        for filters in (["red"], ["blue"], ["red", "blue"], None):
            for name in kinds:
                how = EmitOptions(filters=filters)
                await alice.emit(f"demo/general/{name}", filters, how)
        await settle(alice)

        async def heard(name: str, number: int) -> list[Any]:
            return [data for data, _ in await messages[name].many(number)]

        assert await heard("plain", 4) == [["red"], ["blue"], ["red", "blue"], None]
        assert await heard("twice", 4) == [["red"], ["blue"], ["red", "blue"], None]
        assert await heard("either", 2) == [["red"], ["blue"]]
        assert await heard("both", 1) == [["red", "blue"]]
        shared = messages["shared"].rest() + others.rest()
        assert len(shared) == 4
        await settle(bob)
        assert all(heard.is_silent() for heard in messages.values())

    async def test_any_number_of_restarts(self, broker: Broker, connect: Connect) -> None:
        """Bob subscribes once, and hears of every life of the broker (API-093)."""
        alice, bob = await connect("alice"), await connect("bob")
        messages, back = Heard(), Heard()
        bob.on(TOPIC, messages).on("reconnect", back)
        await bob.subscribe(TOPIC)
        for life in range(4):
            if life:
                await asyncio.to_thread(broker.restart)
                await back.next()
            await alice.publish(TOPIC, life)
            data, _ = await messages.next()
            assert data == life
        assert messages.is_silent()

    async def test_a_broker_that_says_goodbye(self, broker: Broker, connect: Connect) -> None:
        """An orderly shutdown is a loss like any other (FC-05)."""
        bob = await connect("bob")
        lost, back = Heard(), Heard()
        bob.on("disconnect", lost).on("reconnect", back)
        await asyncio.to_thread(broker.stop)
        await lost.next()
        await asyncio.to_thread(broker.start)
        await back.next()
        assert bob.connected

    async def test_presence_and_lobbies_come_back(self, broker: Broker, connect: Connect) -> None:
        """They are announced and watched again without the application (K-023)."""
        alice, bob = await connect("alice"), await connect("bob")
        await alice.set_presence({"seat": 1}, "general")
        lobby = bob.set_app("demo").set_lobby("lounge")
        await lobby.subscribe()
        back = [Heard(), Heard()]
        alice.on("reconnect", back[0])
        bob.on("reconnect", back[1])
        await asyncio.to_thread(broker.restart)
        await back[0].next()
        await back[1].next()

        [member] = await bob.fetch_presence("general")
        assert member["presence"] == {"seat": 1}
        updated = Heard()
        lobby.on("presence:update", updated)
        await alice.set_presence({"seat": 2}, "general")
        seats = [(await updated.next()).data["seat"]]
        # Whether bob or alice is back first decides if the announcement itself is heard, too.
        if seats == [1]:
            seats.append((await updated.next()).data["seat"])
        assert seats[-1] == 2


class TestLosses:
    """Ways to lose a connection, and the order of what is told about it."""

    @pytest.mark.parametrize("code", [1000, 1001, 1009, 1011, 1012, 4008, 4999, None])
    async def test_it_connects_again(
        self, clients: Clients, scripted: ScriptedBroker, code: int | None
    ) -> None:
        """However the broker's end ended, if it can have been an accident (API-019, K-013)."""
        client, link = await clients.link(scripted)
        await client.subscribe(TOPIC)
        lost, back, states = Heard(), Heard(), Heard()
        client.on("disconnect", lost).on("reconnect", back).on("state", states)
        if code is None:
            link.cut()
        else:
            await link.close(code, "for a reason")
        assert isinstance(await lost.next(), str)
        await back.next()
        await (await scripted.link()).next("subscribe")
        assert scripted.attempts == 2

    async def test_the_order_of_events(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`reconnect` is last, once, and after the broker's answers (API-024, API-034)."""
        client = clients.make(scripted.url)
        events = record(client)
        client.subscription(TOPIC)
        await client.connect()
        await until(lambda: "ready" in events)
        assert events == ["connecting", "connect", "ready"]

        events.clear()
        answering: asyncio.Queue[tuple[Link, Frame]] = asyncio.Queue()

        def hold(link: Link, frame: Frame) -> None:
            answering.put_nowait((link, frame))

        scripted.rules["subscribe"] = hold
        (await scripted.link()).cut()
        link, frame = await within(answering.get())
        await until(lambda: "connect" in events)
        assert "ready" not in events
        assert "reconnect" not in events
        await agree(link, frame)
        await until(lambda: "reconnect" in events)
        # Without a history of the broker's whatever was published meanwhile is missed.
        order = ["disconnect", "reconnecting", "connect", "gap", "ready", "reconnect"]
        assert events == order

    async def test_publishing_when_back(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """In a handler of `reconnect` a publish goes out behind what was queued (API-024)."""
        client, link = await clients.link(scripted)
        done = Heard()

        async def publish() -> None:
            done((await client.publish(TOPIC, "in the handler")).outcome)

        client.on("reconnect", publish)
        await scripted.shut()
        await link.closed.wait()
        await until(lambda: not client.connected)
        await client.emit(TOPIC, "queued")
        await scripted.open()
        assert await done.next() == "accepted"
        second = await scripted.link()
        sent = [frame["data"] for frame in second.received("publish")]
        assert sent == ["queued", "in the handler"]

    async def test_what_ready_tells(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Which subscriptions are back, and which one is refused, once (API-033)."""
        client, first = await clients.link(scripted)
        other = "demo/general/other"
        for topic in (TOPIC, other):
            assert await outcome(client.subscribe, topic) is None

        async def allow_one(link: Link, frame: Frame) -> None:
            no = refuse(code=42940, error="unknown_topic", hint="ask your admin")
            await (no if frame["topic"] == other else agree)(link, frame)

        scripted.rules["subscribe"] = allow_one
        ready, errors, messages = Heard(), Heard(), Heard()
        client.on("ready", ready).on("error", errors).on(TOPIC, messages)
        first.cut()
        told = await ready.next()
        assert told["resubscribed"] == [TOPIC]
        [refused] = told["refused"]
        assert refused["topic"] == other
        assert isinstance(refused["error"], NoLagServerError)
        assert refused["error"].code == 42940
        assert not told["resumed"]
        reported = [error for error in errors.rest() if isinstance(error, NoLagServerError)]
        assert [(error.topic, error.code, error.hint) for error in reported] == [
            (other, 42940, "ask your admin")
        ]
        second = await scripted.link()
        await second.message(TOPIC, "still here")
        assert (await messages.next())[0] == "still here"

    async def test_gaps(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A broker that recovers nothing leaves one gap for each subscription (API-035)."""
        client, link = await clients.link(scripted)
        topics = {TOPIC, "demo/general/other"}
        for topic in topics:
            await client.subscribe(topic)
        gaps, back = Heard(), Heard()
        client.on("gap", gaps).on("reconnect", back)
        link.cut()
        await back.next()
        told = gaps.rest()
        assert {gap["topic"] for gap in told} == topics
        assert [gap["reason"] for gap in told] == ["unsupported"] * 2

    async def test_a_token_that_was_revoked(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """There is no use in trying again (API-022, K-015)."""
        client, link = await clients.link(scripted)
        failed = Heard()
        client.on("failed", failed)
        await link.close(4001, "token_revoked")
        error = await failed.next()
        assert isinstance(error, AuthError)
        assert (error.code, error.fatal) == ("token_revoked", True)
        assert client.state == "failed"
        assert client.status is ConnectionStatus.DISCONNECTED
        await asyncio.sleep(0.2)
        assert scripted.attempts == 1

    @pytest.mark.parametrize("how", ["limit", "retry-after"])
    async def test_waiting_when_told(
        self, clients: Clients, scripted: ScriptedBroker, how: str
    ) -> None:
        """Neither a full organization nor `Retry-After` is pressed (API-022, API-023, K-008)."""
        client, link = await clients.link(scripted)
        if how == "limit":
            await link.close(4002, "connection_limit_reached")
            expected = 1
        else:
            scripted.refusal = (503, {"Retry-After": "7"})
            link.cut()
            await scripted.attempted(2)
            scripted.refusal = None
            expected = 2
        # Ten times what it would wait otherwise.
        await asyncio.sleep(0.5)
        assert scripted.attempts == expected
        assert client.status is ConnectionStatus.RECONNECTING

    async def test_a_fixed_interval(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`reconnect_interval` does not grow, as officially (client-api 3.1, API-015).

        A wait that doubled would take minutes.
        """
        client, link = await clients.link(scripted, reconnect_interval=0.02)
        back = Heard()
        client.on("reconnect", back)
        for _ in range(14):
            link.cut()
            link = await scripted.link()
            await back.next()

    async def test_giving_up(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """After so many attempts it ends, and what was queued fails (API-018)."""
        client, link = await clients.link(scripted, max_reconnect_attempts=3)
        failed, emitted, reconnecting = Heard(), Heard(), Heard()
        client.on("failed", failed).on("reconnecting", reconnecting)
        scripted.refusal = (503, {})
        link.cut()
        await reconnecting.next()
        await client.emit(TOPIC, 1, callback=emitted)
        assert (await failed.next()).code == "reconnect_exhausted"
        assert (await emitted.next()).code == "reconnect_exhausted"
        assert [1, *reconnecting.rest()] == [1, 2, 3]
        assert scripted.attempts == 1 + 3
        scripted.refusal = None
        await client.connect()
        assert client.connected

    async def test_without_reconnection(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """A loss is then the end, and pending calls say so (T15)."""
        scripted.rules["publish"] = silent
        client, link = await clients.link(scripted, reconnect=False)
        emitted, lost = Heard(), Heard()
        client.on("disconnect", lost)
        await client.emit(TOPIC, 1, callback=emitted)
        await link.next("publish")
        link.cut()
        error = await emitted.next()
        assert (error.code, error.outcome_unknown) == ("lost", True)
        await lost.next()
        assert client.state == "closed"

    async def test_a_silent_broker(self, broker: Broker, connect: Connect) -> None:
        """One that stops answering is lost; it is found again when it answers (API-067, FC-15)."""
        bob = await connect("bob", heartbeat_interval=0.1, heartbeat_timeout=0.2)
        messages, lost, back, errors = Heard(), Heard(), Heard(), Heard()
        bob.on(TOPIC, messages).on("disconnect", lost).on("reconnect", back).on("error", errors)
        await bob.subscribe(TOPIC)
        broker.freeze()
        await lost.next()
        assert (await errors.next()).code == "heartbeat_timeout"
        broker.thaw()
        await back.next()
        alice = await connect("alice")
        await alice.publish(TOPIC, "awake")
        assert (await messages.next())[0] == "awake"

    async def test_heartbeats_beside_traffic(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """They are sent on a busy connection, too, and never answered (API-068, K-011)."""
        client, link = await clients.link(scripted, heartbeat_interval=0.05)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        for _ in range(3):
            await link.message(TOPIC, "busy")
            await messages.next()
            await link.next(HEARTBEAT)
        sent = len(link.received(HEARTBEAT))
        assert sent <= 4


class TestWhatIsWanted:
    """What is sent on a new connection is what the application wants now."""

    async def test_filters_that_changed(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Before the loss or during it: the newest are subscribed (API-028, K-056)."""
        client, first = await clients.link(scripted)
        start = SubscribeOptions(filters=["a", ["b", "c"]])
        assert await outcome(client.subscribe, TOPIC, start) is None
        assert await outcome(client.add_filters, TOPIC, ["d"]) is None
        await scripted.shut()
        await first.closed.wait()
        await until(lambda: not client.connected)
        added = Heard()
        await client.add_filters(TOPIC, ["e"], added)
        await client.remove_filters(TOPIC, ["a"])
        await scripted.open()
        frame = await (await scripted.link()).next("subscribe")
        plain = sorted(item for item in frame["filters"] if isinstance(item, str))
        groups = [item for item in frame["filters"] if not isinstance(item, str)]
        assert (plain, groups) == (["d", "e"], [["b", "c"]])
        assert await added.next() is None

    async def test_a_topic_that_was_left(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Before the loss or during it: it is not subscribed again (API-029, FC-06)."""
        client, _ = await clients.link(scripted)
        for name in ("kept", "left", "left-later"):
            assert await outcome(client.subscribe, f"demo/general/{name}") is None
        assert await outcome(client.unsubscribe, "demo/general/left") is None
        await scripted.shut()
        await until(lambda: not client.connected)
        # It does not wait for a connection.
        assert await outcome(client.unsubscribe, "demo/general/left-later") is None
        back = Heard()
        client.on("reconnect", back)
        await scripted.open()
        await back.next()
        link = await scripted.link()
        assert [frame["topic"] for frame in link.received("subscribe")] == ["demo/general/kept"]
        assert link.types() == ["auth", "subscribe"]

    async def test_subscribing_in_a_connect_handler(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """What programs for the official client do costs nothing here (API-030)."""
        client = clients.make(scripted.url)
        answers, messages = Heard(), Heard()

        async def on_connect() -> None:
            client.on(TOPIC, messages)
            await client.subscribe(TOPIC, callback=answers)

        client.on("connect", on_connect)
        await client.connect()
        assert await answers.next() is None
        first = await scripted.link()
        first.cut()
        assert await answers.next() is None
        second = await scripted.link()
        assert len(first.received("subscribe")) == len(second.received("subscribe")) == 1
        await second.message(TOPIC, "once")
        assert (await messages.next())[0] == "once"
        assert messages.is_silent()

    async def test_the_order_of_recovery(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Subscriptions, rooms in the order last set, then what was queued (API-031)."""
        client, _ = await clients.link(scripted)
        for topic in ("demo/general/one", "demo/general/two"):
            assert await outcome(client.subscribe, topic) is None
        app = client.set_app("demo")
        for room in ("kitchen", "general", "garden", "kitchen"):
            await app.set_room(room).set_presence({"in": room})
        await scripted.shut()
        await until(lambda: not client.connected)
        receipt = await client.emit(TOPIC, "queued")
        assert receipt.outcome == "queued"
        await scripted.open()
        link = await scripted.link()
        await link.next("publish")
        assert [frame["topic"] for frame in link.received("subscribe")] == [
            "demo/general/one",
            "demo/general/two",
        ]
        rooms = [frame["roomId"] for frame in link.received("presence")]
        assert rooms == ["general", "garden", "kitchen"]
        order = link.types("getPresence")
        assert order == ["auth", *["subscribe"] * 2, *["presence"] * 3, "publish"]

    async def test_a_lobby_that_changed(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Who left during the outage is told once, and who stayed not at all (API-032)."""

        def hold(*names: str) -> Any:
            async def rule(link: Link, frame: Frame) -> None:
                there = {
                    name: {"actorTokenId": name, "presence": {"name": name}, "joinedAt": 1}
                    for name in names
                }
                await link.send(
                    "lobbySubscribed",
                    lobbyId=frame["lobbyId"],
                    presence={"general": there},
                    msgRef=frame["msgRef"],
                )

            return rule

        scripted.rules["lobbySubscribe"] = hold("bob", "carol")
        client, link = await clients.link(scripted)
        lobby = client.set_app("demo").set_lobby("lounge")
        heard = {name: Heard() for name in ("join", "update", "leave")}
        for name, handler in heard.items():
            lobby.on(f"presence:{name}", handler)
        snapshot = await lobby.subscribe()
        assert set(snapshot["general"]) == {"bob", "carol"}

        scripted.rules["lobbySubscribe"] = hold("carol", "dave")
        back = Heard()
        client.on("reconnect", back)
        link.cut()
        await back.next()
        left, joined = await heard["leave"].next(), await heard["join"].next()
        assert (left.lobby_id, left.room_id, left.actor_id) == ("lounge", "general", "bob")
        assert (joined.actor_id, joined.data["name"]) == ("dave", "dave")
        assert all(handler.is_silent() for handler in heard.values())

    async def test_what_was_in_flight_goes_first(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """Under the same reference, and before what is newer (API-043, FC-11 a, K-029)."""
        scripted.rules["publish"] = silent
        client, first = await clients.link(scripted)
        emitted = [Heard() for _ in range(4)]
        for number in (0, 1):
            await client.emit(TOPIC, number, callback=emitted[number])
            await first.next("publish")
        await scripted.shut()
        await until(lambda: not client.connected)
        for number in (2, 3):
            await client.emit(TOPIC, number, callback=emitted[number])
        scripted.rules.clear()
        await scripted.open()
        for heard in emitted:
            assert await heard.next() is None
        second = await scripted.link()
        sent = second.received("publish")
        assert [frame["data"] for frame in sent] == [0, 1, 2, 3]
        references = [frame["msgRef"] for frame in first.received("publish")]
        assert [frame["msgRef"] for frame in sent[:2]] == references
