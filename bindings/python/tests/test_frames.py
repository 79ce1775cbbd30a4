"""What comes and is no message, or no frame."""

import json
import random

import pytest
from kit.clients import Clients
from kit.heard import Heard, within
from kit.scripted import ScriptedBroker
from nolag import (
    NoLagServerError,
)

TOPIC = "demo/general/messages"


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
