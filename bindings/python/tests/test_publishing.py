"""What becomes of a publish: connected, not connected, and in between."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.broker import Broker, Connect, grant, tokens
from kit.clients import Clients
from kit.heard import Heard, outcome, settle, until, within
from kit.net import Proxy
from kit.scripted import Frame, Link, ScriptedBroker, agree, refuse, silent
from nolag import (
    ClosedError,
    ConnectionStatus,
    EmitOptions,
    NoLag,
    NoLagEncodeError,
    NoLagError,
    NoLagServerError,
    NotConnectedError,
    OfflineQueueOptions,
    QoS,
    QueueError,
    Receipt,
)

TOPIC = "demo/general/messages"


async def offline(clients: Clients, scripted: ScriptedBroker, **options: Any) -> NoLag:
    """Make a client that has lost its broker, and looks for it."""
    client, _ = await clients.link(scripted, **options)
    await scripted.shut()
    await until(lambda: client.status is ConnectionStatus.RECONNECTING)
    return client


def failure(receipt: Receipt) -> NoLagError:
    """Give the error of a publish that failed."""
    assert isinstance(receipt.error, NoLagError)
    return receipt.error


def reached(items: list[Any], number: int) -> bool:
    """Tell whether there are so many."""
    return len(items) >= number


class TestConnected:
    """Publishes on a live connection."""

    async def test_a_receipt(self, connect: Connect) -> None:
        """It tells what the broker did with it."""
        alice = await connect("alice")
        for receipt in (await alice.publish(TOPIC, 1), await alice.emit(TOPIC, 1)):
            assert receipt.outcome == "accepted"
            assert (receipt.topic, receipt.qos, receipt.effective_qos) == (TOPIC, 1, 1)
            assert receipt.msg_ref
            assert receipt.attempts == 1
            assert receipt.error is None
            assert await within(receipt.wait()) is receipt

    async def test_quality_0(self, connect: Connect) -> None:
        """It is done when it is written."""
        alice, bob = await connect("alice"), await connect("bob")
        messages = Heard()
        bob.on(TOPIC, messages)
        assert await outcome(bob.subscribe, TOPIC) is None
        receipt = await alice.publish(TOPIC, "unasked", qos=QoS.AT_MOST_ONCE)
        assert (receipt.outcome, receipt.qos) == ("written", 0)
        assert (await messages.next())[0] == "unasked"

    async def test_quality_2(self, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
        """A broker without repeats gives quality 1, and the client says so, once (API-045)."""
        able = await connect("bob")
        receipt = await able.publish(TOPIC, 1, qos=QoS.EXACTLY_ONCE)
        assert (receipt.qos, receipt.effective_qos) == (2, 2)
        alice = await connect("alice", features=["recover"])
        for _ in range(2):
            receipt = await alice.publish(TOPIC, 1, qos=QoS.EXACTLY_ONCE)
            assert (receipt.qos, receipt.effective_qos) == (2, 1)
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1
        assert warnings[0].name == "nolag"

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (None, {"qos": 1}),
            (EmitOptions(qos=QoS.AT_MOST_ONCE), {"qos": 0}),
            (EmitOptions(qos=QoS.EXACTLY_ONCE), {"qos": 2}),
            (EmitOptions(retain=True), {"qos": 1, "retain": True}),
            (EmitOptions(echo=False), {"qos": 1, "echo": False}),
            (EmitOptions(filter="vip"), {"qos": 1, "filter": "vip"}),
            (EmitOptions(filters=["a", "b"]), {"qos": 1, "filters": ["a", "b"]}),
            (EmitOptions(filter="vip", filters=["a", "b"]), {"qos": 1, "filter": "vip"}),
            ({"echo": False, "retain": True}, {"qos": 1, "echo": False, "retain": True}),
        ],
        ids=repr,
    )
    async def test_what_is_sent(
        self,
        clients: Clients,
        scripted: ScriptedBroker,
        options: Any,
        expected: Frame,
    ) -> None:
        """Each option is in the frame when it is given, and not otherwise (API-050, K-055)."""
        client, link = await clients.link(scripted)
        await client.emit(TOPIC, {"x": 1}, options)
        frame = await link.next("publish")
        # Said or not, these mean the same.
        assert frame.pop("echo", True) is expected.get("echo", True)
        assert frame.pop("retain", False) is expected.get("retain", False)
        frame.pop("msgRef", None)
        rest = {key: value for key, value in expected.items() if key not in ("echo", "retain")}
        assert frame == {"type": "publish", "topic": TOPIC, "data": {"x": 1}, **rest}

    async def test_options_of_publish(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The same as keywords; a reference of one's own is kept."""
        client, link = await clients.link(scripted)
        receipt = await client.publish(
            TOPIC, 1, qos=QoS.EXACTLY_ONCE, retain=True, echo=False, filter="vip", msg_ref="order-7"
        )
        assert receipt.msg_ref == "order-7"
        frame = await link.next("publish")
        assert frame == {
            "type": "publish",
            "topic": TOPIC,
            "data": 1,
            "qos": 2,
            "retain": True,
            "echo": False,
            "filter": "vip",
            "msgRef": "order-7",
        }

    async def test_a_refusal(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The call and the `error` event are told, once each (API-095, K-027, K-031)."""
        scripted.rules["publish"] = refuse(code=42920, error="monthly_quota_exceeded", hint="buy")
        client, _ = await clients.link(scripted)
        errors = Heard()
        client.on("error", errors)

        error = await outcome(client.emit, TOPIC, 1)
        assert isinstance(error, NoLagServerError)
        assert (error.code, error.error, error.topic) == (42920, "monthly_quota_exceeded", TOPIC)
        assert (error.hint, error.retryable) == ("buy", False)
        assert (await errors.next()).code == 42920

        receipt = await client.emit(TOPIC, 1)
        assert (receipt.outcome, failure(receipt).code) == ("failed", 42920)
        assert (await errors.next()).code == 42920

        with pytest.raises(NoLagServerError, match="monthly_quota_exceeded"):
            await client.publish(TOPIC, 1)
        assert (await errors.next()).code == 42920
        assert errors.is_silent()
        assert client.connected

    async def test_the_broker_s_pace(self, tmp_path: Path, clients: Clients) -> None:
        """What the broker tells to be its limit is kept, so that it refuses nothing (API-042)."""
        grant(tmp_path, tokens(rateLimit=20))
        broker = Broker(tmp_path)
        try:
            alice = await clients.connect(broker.url, "alice")
            bob = await clients.connect(broker.url, "bob")
            messages = Heard()
            bob.on(TOPIC, messages)
            assert await outcome(bob.subscribe, TOPIC) is None
            told = [Heard() for _ in range(50)]
            for number, heard in enumerate(told):
                await alice.emit(TOPIC, number, callback=heard)
            assert [await heard.next() for heard in told] == [None] * 50
            assert [data for data, _ in await messages.many(50)] == list(range(50))
            assert await asyncio.to_thread(broker.metric, "nolag_publish_rejected_total") == 0
        finally:
            broker.kill()

    async def test_too_many_at_once(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """What the broker had no room for in this second goes again, in order (API-047)."""
        refused: list[Any] = []

        async def once(link: Link, frame: Frame) -> None:
            if frame["data"] not in refused and frame["data"] in (1, 2):
                refused.append(frame["data"])
                await refuse(code=42910, error="rate_limit_exceeded")(link, frame)
            else:
                await agree(link, frame)

        scripted.rules["publish"] = once
        client, link = await clients.link(scripted, max_in_flight=1)
        emitted = [asyncio.create_task(outcome(client.emit, TOPIC, number)) for number in range(4)]
        assert await within(asyncio.gather(*emitted)) == [None] * 4
        sent = [frame["data"] for frame in link.received("publish")]
        assert sent == [0, 1, 1, 2, 2, 3]

    async def test_no_answer_from_a_living_broker(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """The outcome is unknown, and it is not sent again (API-049, FC-11 c, K-028)."""
        late: list[tuple[Link, Frame]] = []
        scripted.rules["publish"] = lambda *what: late.append(what)
        client, link = await clients.link(scripted, ack_timeout=0.1)
        errors = Heard()
        error = await outcome(client.emit, TOPIC, 1)
        assert isinstance(error, NoLagError)
        assert (error.code, error.outcome_unknown, error.retryable) == ("ack_timeout", True, True)
        assert client.connected
        scripted.rules.clear()
        client.on("error", errors)
        await agree(*late[0])
        # A late answer is nobody's.
        assert (await client.publish(TOPIC, 2)).outcome == "accepted"
        assert errors.is_silent()
        assert [frame["data"] for frame in link.received("publish")] == [1, 2]

    async def test_no_answer_from_a_dead_broker(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """It is a loss then, and the publish goes again (API-049)."""
        client, link = await clients.link(scripted, ack_timeout=0.1, heartbeat_timeout=0.2)
        link.freeze()
        publishing = asyncio.create_task(client.publish(TOPIC, 1))
        second = await scripted.link()
        assert (await second.next("publish"))["data"] == 1
        assert (await within(publishing)).outcome == "accepted"

    async def test_flush(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It ends when nothing is left, and not before (API-052)."""
        held: list[tuple[Link, Frame]] = []
        scripted.rules["publish"] = lambda *what: held.append(what)
        client, link = await clients.link(scripted, max_in_flight=2)
        for number in range(3):
            await client.emit(TOPIC, number, callback=print)
        await link.next("publish")
        await link.next("publish")
        flushing = asyncio.create_task(client.flush())
        with pytest.raises(NoLagError) as raised:
            await client.flush(timeout=0.05)
        assert raised.value.code == "flush_timeout"
        for number in range(3):
            await until(partial(reached, held, number + 1))
            assert not flushing.done()
            await agree(*held[number])
        await within(flushing)

    async def test_closing_waits_for_answers(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """All that was published is answered before the close frame (API-009)."""
        client = await offline(clients, scripted)
        emitted = [Heard() for _ in range(200)]
        for number, heard in enumerate(emitted):
            await client.emit(TOPIC, number, callback=heard)
        await scripted.open()
        await within(client.close())
        link = await scripted.link()
        await within(link.closed.wait())
        assert [frame["data"] for frame in link.received("publish")] == list(range(200))
        assert [await heard.next() for heard in emitted] == [None] * 200
        assert link.close_code == 1000

    async def test_closing_does_not_wait_for_ever(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """A broker that is silent fails what it did not answer (API-009)."""
        scripted.rules["publish"] = silent
        client, link = await clients.link(scripted)
        emitted = Heard()
        await client.emit(TOPIC, 1, callback=emitted)
        await link.next("publish")
        await within(client.close(timeout=0.1))
        error = await emitted.next()
        assert isinstance(error, ClosedError)
        assert error.outcome_unknown


class TestNeverConnected:
    """Before `connect` there is nothing to queue for (API-036)."""

    async def test_compatible_verbs(self, clients: Clients) -> None:
        """Their callbacks hear it before the call is over, and nothing is raised."""
        client = clients.make("ws://127.0.0.1:9/ws")
        heard = Heard()
        await client.emit(TOPIC, 1, callback=heard)
        [error] = heard.rest()
        await client.subscribe(TOPIC, callback=heard)
        errors = [error, *heard.rest()]
        assert [str(error) for error in errors] == ["Not connected"] * 2
        assert all(isinstance(error, NotConnectedError) for error in errors)
        receipt = await client.emit(TOPIC, 1)
        assert (receipt.outcome, failure(receipt).code) == ("failed", "not_connected")
        await client.subscribe(TOPIC)

    async def test_publish(self, clients: Clients) -> None:
        """It raises."""
        client = clients.make("ws://127.0.0.1:9/ws")
        with pytest.raises(NotConnectedError) as raised:
            await client.publish(TOPIC, 1)
        assert raised.value.code == "not_connected"


class TestOffline:
    """The queue of a client that looks for its broker."""

    async def test_it_keeps_the_order(self, broker: Broker, clients: Clients) -> None:
        """A hundred publishes made offline arrive once each and in order (API-037, FC-09)."""
        bob = await clients.connect(broker.url, "bob")
        messages = Heard()
        bob.on(TOPIC, messages)
        assert await outcome(bob.subscribe, TOPIC) is None
        proxy = Proxy(broker.port)
        await proxy.open()
        try:
            alice = await clients.connect(proxy.url, "alice")
            await proxy.shut()
            await until(lambda: alice.status is ConnectionStatus.RECONNECTING)
            emitted = [Heard() for _ in range(100)]
            for number, heard in enumerate(emitted):
                receipt = await alice.emit(TOPIC, number, callback=heard)
                assert receipt.outcome == "queued"
            await proxy.open()
            assert [await heard.next() for heard in emitted] == [None] * 100
            assert [data for data, _ in await messages.many(100)] == list(range(100))
            await settle(alice)
            await settle(bob)
            assert messages.is_silent()
        finally:
            await proxy.shut()

    async def test_a_receipt_can_be_awaited(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """`emit` returns at once, and the receipt tells when it is known."""
        client = await offline(clients, scripted)
        receipt = await within(client.emit(TOPIC, 1))
        assert receipt.outcome == "queued"
        await scripted.open()
        await within(receipt.wait())
        assert receipt.outcome == "accepted"

    @pytest.mark.parametrize(
        "limits", [{"max_messages": 3}, {"max_bytes": 3 * 100}], ids=["messages", "bytes"]
    )
    async def test_one_too_many_is_refused(
        self, clients: Clients, scripted: ScriptedBroker, limits: dict[str, Any]
    ) -> None:
        """By count and by bytes; those before it are kept (API-038, FC-23)."""
        client = await offline(clients, scripted, offline_queue=OfflineQueueOptions(**limits))
        kept = [await client.emit(TOPIC, bytes([number]) * 90) for number in range(3)]
        error = await outcome(client.emit, TOPIC, b"\x03" * 90)
        assert isinstance(error, QueueError)
        assert (error.code, error.retryable) == ("queue_full", True)
        with pytest.raises(QueueError):
            await client.publish(TOPIC, b"\x03" * 90)
        await scripted.open()
        for receipt in kept:
            assert (await within(receipt.wait())).outcome == "accepted"
        link = await scripted.link()
        assert [frame["data"][0] for frame in link.received("publish")] == [0, 1, 2]

    async def test_the_oldest_may_go(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """With `drop_oldest` the newest are kept (API-038)."""
        queue = OfflineQueueOptions(max_messages=2, overflow="drop_oldest")
        client = await offline(clients, scripted, offline_queue=queue)
        receipts = [await client.emit(TOPIC, number) for number in range(4)]
        for receipt in receipts[:2]:
            assert failure(await within(receipt.wait())).code == "queue_full"
        await scripted.open()
        for receipt in receipts[2:]:
            assert (await within(receipt.wait())).outcome == "accepted"
        link = await scripted.link()
        assert [frame["data"] for frame in link.received("publish")] == [2, 3]

    async def test_publish_may_wait_for_room(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """With `block` the call waits, and can be given up (API-038)."""
        queue = OfflineQueueOptions(max_messages=2, overflow="block")
        client = await offline(clients, scripted, offline_queue=queue)
        publishing = [asyncio.create_task(client.publish(TOPIC, number)) for number in range(4)]
        await until(lambda: client.stats().queue_messages == 2)
        publishing[2].cancel()
        await asyncio.wait([publishing[2]])
        assert not any(publishing[number].done() for number in (0, 1, 3))
        await scripted.open()
        for number in (0, 1, 3):
            assert (await within(publishing[number])).outcome == "accepted"
        link = await scripted.link()
        assert [frame["data"] for frame in link.received("publish")] == [0, 1, 3]

    async def test_what_is_too_old(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It fails, and is never sent (API-039)."""
        queue = OfflineQueueOptions(ttl=0.05)
        client = await offline(clients, scripted, offline_queue=queue)
        old = await client.emit(TOPIC, "old")
        young = asyncio.create_task(client.publish(TOPIC, "young", ttl=60))
        error = (await within(old.wait())).error
        assert isinstance(error, QueueError)
        assert error.code == "queue_expired"
        await scripted.open()
        assert (await within(young)).outcome == "accepted"
        link = await scripted.link()
        assert [frame["data"] for frame in link.received("publish")] == ["young"]

    async def test_quality_0(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is refused unless one asks to keep it (API-040)."""
        client = await offline(clients, scripted)
        error = await outcome(client.emit, TOPIC, 1, EmitOptions(qos=QoS.AT_MOST_ONCE))
        assert isinstance(error, NotConnectedError)
        with pytest.raises(NotConnectedError):
            await client.publish(TOPIC, 1, qos=QoS.AT_MOST_ONCE)

        keep = OfflineQueueOptions(qos0="queue")
        await scripted.open()
        keeper = await offline(clients, scripted, offline_queue=keep)
        receipt = await keeper.emit(TOPIC, 2, EmitOptions(qos=QoS.AT_MOST_ONCE))
        assert receipt.outcome == "queued"
        await scripted.open()
        assert (await within(receipt.wait())).outcome == "written"

    async def test_without_a_queue(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """One may have it off; then everything fails at once."""
        client = await offline(clients, scripted, offline_queue=OfflineQueueOptions(enabled=False))
        error = await outcome(client.emit, TOPIC, 1)
        assert isinstance(error, NotConnectedError)
        with pytest.raises(NotConnectedError):
            await client.publish(TOPIC, 1)

    async def test_values_are_taken_as_they_are(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """What the caller changes afterwards is not sent (API-041)."""
        client = await offline(clients, scripted)
        value = {"list": [1]}
        await client.emit(TOPIC, value)
        value["list"].append(2)
        buffer = bytearray(b"before")
        await client.emit(TOPIC, buffer)
        buffer[:] = b"after!"
        await scripted.open()
        link = await scripted.link()
        assert (await link.next("publish"))["data"] == {"list": [1]}
        assert (await link.next("publish"))["data"] == b"before"

    async def test_what_cannot_be_sent(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is refused when it is queued, not later."""
        client = await offline(clients, scripted)
        with pytest.raises(NoLagEncodeError):
            await client.emit(TOPIC, object())

    async def test_far_too_many(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Beyond its bound the queue takes nothing, and everyone is told (FC-23)."""
        client = await offline(clients, scripted)
        receipts = [await client.emit(TOPIC, number) for number in range(20_000)]
        await within(receipts[-1].wait())
        refused = [receipt for receipt in receipts if receipt.outcome != "queued"]
        assert len(refused) == 19_000
        assert {failure(receipt).code for receipt in refused} == {"queue_full"}
        assert client.stats().queue_messages == 1000
        await scripted.open()
        await within(client.flush())
        link = await scripted.link()
        assert [frame["data"] for frame in link.received("publish")] == list(range(1000))
