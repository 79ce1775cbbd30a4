"""What the caller of `subscribe` and its kin is told."""

from typing import Any

import pytest
from kit.broker import Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle
from kit.scripted import ScriptedBroker
from nolag import (
    NoLagServerError,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"


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
