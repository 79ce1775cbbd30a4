"""Values on their way out and back in."""

import asyncio
import datetime as dt
import math
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import pytest
from kit.broker import Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, within
from kit.scripted import ScriptedBroker
from kit.scripts import Script
from nolag import EmitOptions, ExtType, NoLag, NoLagEncodeError

TOPIC = "demo/general/messages"
UTC = dt.timezone.utc


class Size(IntEnum):
    """What becomes a plain number."""

    SMALL = 1


async def echoed(client: NoLag, value: Any, options: EmitOptions | None = None) -> Any:
    """Publish a value to oneself, through the broker."""
    messages = Heard()
    client.on(TOPIC, messages)
    assert await outcome(client.subscribe, TOPIC) is None
    assert await outcome(client.emit, TOPIC, value, options) is None
    data, _ = await messages.next()
    client.off(TOPIC, messages)
    return data


SAME = [
    None,
    True,
    False,
    0,
    1,
    -1,
    127,
    128,
    -33,
    2**31,
    # FC-17: on both sides of what JavaScript's numbers hold, and the ends of MessagePack's.
    9007199254740991,
    9007199254740993,
    -9223372036854775808,
    18446744073709551615,
    1.5,
    2.0,
    -0.0,
    1e300,
    # FC-18: text is text, bytes are bytes, whatever they hold.
    "",
    "snö ☃",
    "grüße 👋 \x00",
    b"",
    b"\x00\xff\x80",
    b"valid utf-8",
    ["text", b"bytes", "", b"", [], {}],
    [1, [2, [3, [4]]]],
    {"nested": {"map": [], "none": None}, "": 0},
    {7: "int key", -7: "negative", b"bytes": 1, True: 2, None: 3, 2.5: 4},
    "x" * 900_000,
    b"\xff" * 900_000,
    list(range(10_000)),
    dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    dt.datetime(9999, 12, 31, tzinfo=UTC),
    ExtType(42, b"opaque"),
    ExtType(-128, b""),
]


class TestRoundTrips:
    """What arrives is what was sent."""

    @pytest.mark.parametrize("value", SAME, ids=lambda value: repr(value)[:24])
    async def test_values(self, connect: Connect, value: Any) -> None:
        """Value and type survive (FC-17, FC-18, K-034, K-035)."""
        alice = await connect("alice")
        data = await echoed(alice, value)
        assert data == value
        assert type(data) is type(value)
        if isinstance(value, float):
            assert math.copysign(1, data) == math.copysign(1, value)
        if isinstance(value, list) and len(value) < 10:
            assert [type(item) for item in data] == [type(item) for item in value]

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ((1, (2,)), [1, [2]]),
            (bytearray(b"\x01"), b"\x01"),
            (memoryview(b"0123456789")[2:6], b"2345"),
            (memoryview(b"0123456789")[::2], b"02468"),
            (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
            (Size.SMALL, 1),
            (
                dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))),
                dt.datetime(2024, 1, 1, tzinfo=UTC),
            ),
        ],
        ids=lambda value: type(value).__name__,
    )
    async def test_what_becomes_something_simpler(
        self, connect: Connect, value: Any, expected: Any
    ) -> None:
        """Python has more types than MessagePack."""
        data = await echoed(await connect("alice"), value)
        assert data == expected
        assert type(data) is type(expected)

    async def test_the_order_of_keys(self, connect: Connect) -> None:
        """It is kept."""
        value = {name: number for number, name in enumerate("zyxabc")}
        assert list(await echoed(await connect("alice"), value)) == list("zyxabc")

    async def test_retained(self, connect: Connect) -> None:
        """The same when they were kept (FC-18)."""
        alice, bob = await connect("alice"), await connect("bob")
        value = {"text": "snö ☃", "bytes": b"\x00\xff\x80", "none": ["", b""]}
        await alice.publish(TOPIC, value, retain=True)
        assert await bob_gets(bob) == value

    async def test_the_deepest(self, connect: Connect) -> None:
        """32 levels pass, and as many as the limit, 128 (FC-19)."""
        alice = await connect("alice")
        for depth in (32, 128):
            assert await echoed(alice, nested(depth)) == nested(depth)


async def bob_gets(bob: NoLag) -> Any:
    """Subscribe, and take the first message."""
    async with bob.subscription(TOPIC) as subscription:
        return (await within(anext(subscription))).data


def nested(depth: int) -> Any:
    """Make so many lists, one in another."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def circle() -> list[Any]:
    """Make a list that is its own item."""
    items: list[Any] = []
    items.append(items)
    return items


class TestRefusals:
    """What cannot be sent is refused at the call."""

    @pytest.mark.parametrize(
        ("value", "word"),
        [
            (object(), "object"),
            ({"set": {1}}, "set"),
            (2**64, "integer"),
            (-(2**63) - 1, "integer"),
            ([{"deep": [1, 2**64]}], "integer"),
            (math.nan, "NaN|nan"),
            (math.inf, "inf"),
            ("\ud800", "surrogate"),
            ({"\udfff": 1}, "surrogate"),
            (nested(129), "128"),
            (circle(), "circle"),
            (dt.datetime(2024, 1, 1), "time zone"),  # noqa: DTZ001 — that is the point
            (print, "function"),
        ],
        ids=lambda value: repr(value)[:24] if not isinstance(value, list) else "list",
    )
    async def test_values(self, connect: Connect, value: Any, word: str) -> None:
        """Each says what it was, and the client goes on (FC-17, K-033, issue 4)."""
        alice = await connect("alice")
        errors = Heard()
        alice.on("error", errors)
        for call in (alice.emit, alice.publish):
            with pytest.raises(NoLagEncodeError, match=word) as raised:
                await call(TOPIC, value)
            assert raised.value.code == "encode"
            assert raised.value.topic == TOPIC
            assert TOPIC in str(raised.value)
            assert raised.value.__cause__ is not None
        error = await outcome(alice.emit, TOPIC, value)
        assert isinstance(error, NoLagEncodeError)
        assert await echoed(alice, "still here") == "still here"

    async def test_offline_and_before(self, clients: Clients) -> None:
        """The same without a connection."""
        client = clients.make("ws://127.0.0.1:9/ws")
        error = await outcome(client.emit, TOPIC, object())
        assert isinstance(error, Exception)


class TestReceiving:
    """What others may send that we would not."""

    @pytest.mark.parametrize(
        ("raw", "expected"),
        [
            (b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", math.inf),
            (b"\xca\x3f\xc0\x00\x00", 1.5),
            (b"\xcf\x00\x00\x00\x00\x00\x00\x00\x01", 1),
            (b"\xd3\xff\xff\xff\xff\xff\xff\xff\xff", -1),
            (b"\xa2\xff\xfe", b"\xff\xfe"),
            (b"\xd9\x01a", "a"),
            (b"\x82\xa1a\x01\xa1a\x02", {"a": 2}),
            (b"\x81\x91\x01\x02", {(1,): 2}),
            (b"\xd6\xff\x00\x00\x00\x01", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
            (b"\xd4\x05\x01", ExtType(5, b"\x01")),
            # A timestamp that Python's datetime has no room for.
            (
                b"\xc7\x0c\xff\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff",
                ExtType(-1, b"\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"),
            ),
        ],
        ids=lambda value: repr(value)[:24],
    )
    async def test_values(
        self, clients: Clients, scripted: ScriptedBroker, raw: bytes, expected: Any
    ) -> None:
        """Every form of a value is read (K-034, FC-17)."""
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.send_raw(raw_message(raw))
        data, _ = await messages.next()
        assert data == expected
        assert type(data) is type(expected)

    @pytest.mark.parametrize("depth", [2_048, 100_000, 1_000_000])
    @pytest.mark.parametrize("byte", [b"\x91", b"\x81\xa0"], ids=["lists", "maps"])
    async def test_endless_nesting(
        self, clients: Clients, scripted: ScriptedBroker, byte: bytes, depth: int
    ) -> None:
        """It crashes nothing, and the client goes on (FC-19)."""
        client, link = await clients.link(scripted)
        messages = Heard()
        client.on(TOPIC, messages)
        await client.subscribe(TOPIC)
        await link.send_raw(byte * depth)
        await link.send_raw(raw_message(byte * depth + b"\xc0"))
        await link.message(TOPIC, "after")
        assert (await messages.next())[0] == "after"
        assert client.stats().decode_errors >= 1

    async def test_nesting_on_a_small_stack(self, scripted: ScriptedBroker) -> None:
        """The same in a thread that has a stack of 256 KiB (FC-19).

        In a process of its own, which is what would crash.
        """
        script = Script(SMALL_STACK, URL=scripted.url)
        link = await scripted.link()
        await link.next("subscribe")
        for depth in (127, 100_000):
            await link.send_raw(raw_message(b"\x91" * depth + b"\x90"))
        await link.message(TOPIC, "after")
        result = await asyncio.to_thread(script.end)
        assert (result.code, result.output) == (0, "128 deep\nafter\nrefused\nsent\n"), result


SMALL_STACK = """
import asyncio, os, threading
from nolag import NoLag, NoLagEncodeError

TOPIC = "demo/general/messages"

def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value

async def main():
    async with NoLag("dev-token-alice", url=os.environ["URL"]) as client:
        async with client.subscription(TOPIC) as messages:
            value, depth = (await anext(messages)).data, 1
            while value:
                [value], depth = value, depth + 1
            print(depth, "deep", flush=True)
            print((await anext(messages)).data, flush=True)
        try:
            await client.publish(TOPIC, nested(5_000))
        except NoLagEncodeError:
            print("refused", flush=True)
        await client.publish(TOPIC, nested(128))
        print("sent", flush=True)

threading.stack_size(256 * 1024)
thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
thread.join()
"""


def raw_message(data: bytes) -> bytes:
    """Make a frame of the topic with a payload that may be anything."""
    head = b"\x83\xa4type\xa7message\xa5topic" + bytes([0xA0 | len(TOPIC)]) + TOPIC.encode()
    return head + b"\xa4data" + data
