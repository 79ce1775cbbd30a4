"""What counts, and what is logged (API-096, API-097)."""

import dataclasses
import logging
from pathlib import Path

import pytest
from kit.broker import Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, until
from kit.scripted import ScriptedBroker
from kit.scripts import run
from nolag import NoLag, Stats

TOPIC = "demo/general/messages"

# What may also fall: what is there now, not what was.
GAUGES = {"queue_messages", "queue_bytes", "in_flight", "ack_backlog", "subscriptions", "rtt"}


async def test_counters_only_grow(clients: Clients, scripted: ScriptedBroker) -> None:
    """Over a life with losses, refusals and garbage."""
    client, link = await clients.link(scripted, heartbeat_interval=0.05)
    names = {field.name for field in dataclasses.fields(Stats)}
    assert names > GAUGES
    before = client.stats()

    def check() -> Stats:
        nonlocal before
        now = client.stats()
        for name in names - GAUGES:
            assert getattr(now, name) >= getattr(before, name), name
        before = now
        return now

    messages, back = Heard(), Heard()
    client.on(TOPIC, messages).on("reconnect", back)
    assert await outcome(client.subscribe, TOPIC) is None
    await client.publish(TOPIC, "x" * 100)
    for _ in range(2):
        await link.message(TOPIC, 1, msgId="m-1", requiresAck=True)
        await link.next("ack")
    await link.send_raw(b"\xc1")
    await link.message(TOPIC, 2)
    await messages.many(2)
    await until(lambda: client.stats().rtt is not None)
    now = check()
    assert (now.connects, now.reconnects, now.published, now.received) == (1, 0, 1, 2)
    assert (now.duplicates, now.decode_errors, now.subscriptions) == (1, 1, 1)
    assert (now.queue_messages, now.in_flight, now.ack_backlog, now.acks_sent) == (0, 0, 0, 2)
    assert now.bytes_out > 100
    assert now.frames_out >= 4

    scripted.refusal = (503, {})
    link.cut()
    await scripted.attempted(3)
    await client.emit(TOPIC, "queued")
    await until(lambda: client.stats().queue_messages == 1)
    now = check()
    assert now.queue_bytes > 0
    assert now.connect_failures >= 1
    scripted.refusal = None
    await back.next()
    now = check()
    assert (now.connects, now.reconnects) == (2, 1)
    assert now.downtime > 0
    assert now.gaps == 1
    client.disconnect()
    check()


async def test_failures_of_handlers(clients: Clients, scripted: ScriptedBroker) -> None:
    """They are counted, too."""
    client, link = await clients.link(scripted)
    errors = Heard()

    def fail(*_args: object) -> None:
        raise ZeroDivisionError

    client.on("error", errors).on(TOPIC, fail)
    await client.subscribe(TOPIC)
    await link.message(TOPIC, 1)
    await errors.next()
    assert client.stats().handler_errors == 1


def test_before_connecting() -> None:
    """Nothing has happened yet."""
    stats = NoLag("token", url="ws://127.0.0.1:9/ws").stats()
    assert stats == Stats()


async def test_silence_by_default(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """A life without trouble logs nothing at the level that Python shows."""

    async def life() -> None:
        alice = await connect("alice")
        await alice.subscribe(TOPIC)
        await alice.publish(TOPIC, 1)
        await alice.close()

    caplog.set_level(logging.INFO)
    await life()
    assert not [record for record in caplog.records if record.name.startswith("nolag")]


async def test_a_logger_of_one_s_own(
    clients: Clients, scripted: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets all, and the package's own nothing."""
    logger = logging.getLogger("test.of.mine")
    caplog.set_level(logging.DEBUG, logger="test.of.mine")
    caplog.set_level(logging.DEBUG, logger="nolag")
    client, _ = await clients.link(scripted, logger=logger)
    await client.publish(TOPIC, 1)
    client.disconnect()
    names = {record.name for record in caplog.records if "websockets" not in record.name}
    assert names == {"test.of.mine"}


def test_debug_shows_on_the_console(tmp_path: Path) -> None:
    """`debug=True` needs no set-up of logging; a program that has one keeps it (API-096)."""
    program = """
import asyncio, sys
{setup}
from nolag import NoLag

async def main():
    client = NoLag("t0ken", url="ws://127.0.0.1:1/ws", debug=True)
    try:
        await client.connect()
    except ConnectionError as error:
        print(error.code)

asyncio.run(main())
"""
    plain = run(program.format(setup=""))
    assert plain.output == "refused\n"
    assert "connecting" in plain.errors
    assert "t0ken" not in plain.errors

    own = tmp_path / "log.txt"
    setup = f"import logging; logging.basicConfig(filename={str(own)!r}, level=logging.DEBUG)"
    configured = run(program.format(setup=setup))
    assert (configured.output, configured.errors) == ("refused\n", "")
    assert "connecting" in own.read_text()
