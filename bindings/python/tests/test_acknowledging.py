"""Which messages are acknowledged, and when."""

import asyncio
from typing import Any

from kit.clients import Clients
from kit.heard import Heard, settle, within
from kit.scripted import ScriptedBroker

TOPIC = "demo/general/messages"


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

    async def test_without_a_handler(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Then what nobody handles is not acknowledged, for another to handle."""
        client, link = await clients.link(scripted, ack_mode="after_handler")
        await client.subscribe(TOPIC)
        await link.message(TOPIC, 0, msgId="m-0", requiresAck=True)
        await settle(client)
        messages = Heard()
        client.on(TOPIC, messages)
        await link.message(TOPIC, 1, msgId="m-1", requiresAck=True)
        assert acknowledged(await link.next("ack", "batchAck")) == ["m-1"]

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
