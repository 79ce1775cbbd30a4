"""A day in the life of a client, on every kind of event loop there is."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from kit.broker import Broker
from kit.heard import Heard, outcome, within
from kit.net import closed_port
from nolag import ClosedError, NoLag, NoLagError, NoLagServerError

if sys.platform != "win32":
    import uvloop

    LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.SelectorEventLoop,
        "uvloop": uvloop.new_event_loop,
    }
else:
    LOOPS = {"asyncio": asyncio.SelectorEventLoop}

TOPIC = "demo/general/messages"


async def day(broker: Broker) -> None:
    """Do a bit of everything."""
    with closed_port() as nowhere, pytest.raises(NoLagError):
        await NoLag("dev-token-alice", url=nowhere).connect()

    alice = NoLag("dev-token-alice", url=broker.url, reconnect_interval=0.05)
    bob = NoLag("dev-token-bob", url=broker.url, reconnect_interval=0.05)
    messages, joined, back = Heard(), Heard(), [Heard(), Heard()]
    bob.on(TOPIC, messages).on("presence:join", joined).on("reconnect", back[0])
    alice.on("reconnect", back[1])
    async with alice, bob:
        assert await outcome(bob.subscribe, TOPIC) is None
        for number in range(300):
            await alice.emit(TOPIC, number, callback=lambda _error: None)
        assert [data for data, _ in await messages.many(300)] == list(range(300))

        with pytest.raises(NoLagServerError):
            await alice.publish("elsewhere/general/messages", 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(bob.subscription("demo/general/silence")), 0.02)

        await bob.set_presence({"seat": 1}, "general")
        assert (await joined.next()).actor_token_id == "bob"
        state = await alice.set_app("demo").set_lobby("lounge").subscribe()
        assert state["general"]["bob"]["seat"] == 1

        publishing = asyncio.to_thread(lambda: alice.threadsafe.publish(TOPIC, "thread").result(20))
        assert (await within(publishing)).outcome == "accepted"
        assert (await messages.next())[0] == "thread"

        await asyncio.to_thread(broker.restart)
        for heard in back:
            await heard.next()
        async with bob.subscription("demo/general/iterated") as subscription:
            await alice.publish("demo/general/iterated", "after")
            assert (await within(anext(subscription))).data == "after"
        await alice.publish(TOPIC, "after")
        assert (await messages.next())[0] == "after"
    assert not alice.connected
    assert not bob.connected


@pytest.mark.parametrize("loop", list(LOOPS))
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_a_day(broker: Broker, loop: str, *, debug: bool) -> None:
    """Also where the loop watches for what is slow, or called from the wrong thread."""
    made = LOOPS[loop]()
    made.set_debug(debug)
    failures: list[dict[str, Any]] = []
    made.set_exception_handler(lambda _loop, context: failures.append(context))
    try:
        made.run_until_complete(day(broker))
        made.run_until_complete(made.shutdown_default_executor())
    finally:
        made.close()
    assert not failures


def test_a_loop_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that watches no sockets, as the default one on Windows, is told what to do instead."""
    loop = asyncio.SelectorEventLoop()

    def cannot(*_args: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(loop, "add_reader", cannot)
    try:
        with pytest.raises(NoLagError, match="SelectorEventLoop") as raised:
            loop.run_until_complete(NoLag("token", url="ws://127.0.0.1:9/ws").connect())
        assert raised.value.code == "unsupported_runtime"
    finally:
        loop.close()


def test_a_loop_that_ends_before_the_call_of_a_thread(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread is told, and nothing is printed (FC-32)."""
    loop = asyncio.new_event_loop()
    client = NoLag("dev-token-alice", url=broker.url)
    loop.run_until_complete(client.connect())
    publishing = client.threadsafe.publish(TOPIC, 1)
    # One turn makes a task of the call, and a second one would be its first step.
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    with pytest.raises(ClosedError):
        publishing.result(20)
    assert not caplog.records
