"""Each error is what the table for all languages says (API-094)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import nolag
import pytest
from kit.broker import ROOT
from kit.clients import Clients
from kit.heard import Heard, until, within
from kit.net import closed_port, silent_port
from kit.scripted import Frame, Link, Rule, ScriptedBroker, refuse, silent
from nolag import NoLag, NoLagError

TABLE = json.loads((ROOT / "conformance/client-errors.json").read_text())["errors"]
TOPIC = "demo/general/messages"


Situation = Callable[["Stage"], Awaitable[NoLagError]]


class Stage:
    """What the situations have at hand."""

    def __init__(
        self, clients: Clients, scripted: ScriptedBroker, expected: dict[str, Any]
    ) -> None:
        """Set it up."""
        self.clients = clients
        self.scripted = scripted
        self.expected = expected

    def make(self, url: str | None = None, **options: Any) -> NoLag:
        """Make a client that goes on in the background where that has any use."""
        return self.clients.make(
            self.scripted.url if url is None else url, initial_connect="background", **options
        )

    async def connected(self, **options: Any) -> tuple[NoLag, Link]:
        """Connect one."""
        client = self.make(**options)
        await client.connect()
        return client, await self.scripted.link()

    async def offline(self, **options: Any) -> NoLag:
        """Connect one, and take its broker away."""
        client, _ = await self.connected(**options)
        await self.scripted.shut()
        await until(lambda: not client.connected)
        return client

    def answer(self) -> Rule:
        """Make a rule that refuses with the error that is expected."""
        names = {"serverCode": "code", "maxSizeBytes": "maxSizeBytes"}
        fields = {
            wire: self.expected[name] for name, wire in names.items() if name in self.expected
        }
        return refuse(error=self.expected["code"], **fields)


SITUATIONS: dict[str, Situation] = {}


def when(words: str) -> Callable[[Situation], Situation]:
    """Register what brings an error about, in the words of the table."""

    def register(situation: Situation) -> Situation:
        SITUATIONS[words] = situation
        return situation

    return register


async def error_of(awaitable: Awaitable[Any]) -> NoLagError:
    """Give what it raises."""
    with pytest.raises(NoLagError) as raised:
        await within(awaitable)
    return raised.value


@when("connect without a URL")
async def _connect_without_a_url(_stage: Stage) -> NoLagError:
    return await error_of(NoLag("token").connect())


async def _connect_to(stage: Stage, url: str, **options: Any) -> NoLagError:
    return await error_of(stage.make(url, **options).connect())


@when("an option that does not exist")
async def _an_unknown_option(stage: Stage) -> NoLagError:
    with pytest.raises(NoLagError) as raised:
        stage.make(what=1)
    return raised.value


@when("a call where the client cannot work")
async def _a_foreign_loop(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(asyncio.to_thread(lambda: asyncio.run(_flush(client))))


async def _flush(client: NoLag) -> None:
    await client.flush()


@when("connect where nobody listens")
async def _nobody_listens(stage: Stage) -> NoLagError:
    with closed_port() as url:
        return await _connect_to(stage, url)


@when("connect to a silent port")
async def _a_silent_port(stage: Stage) -> NoLagError:
    with silent_port() as url:
        return await _connect_to(stage, url, connect_timeout=0.1)


@when("connect to ftp://")
async def _another_scheme(stage: Stage) -> NoLagError:
    return await _connect_to(stage, "ftp://127.0.0.1/ws")


@when("connect to an unknown host")
async def _unknown_host(stage: Stage) -> NoLagError:
    return await _connect_to(stage, "ws://nowhere.invalid/ws")


@when("connect by TLS to a server without")
async def _no_tls(stage: Stage) -> NoLagError:
    async def complain(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(complain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await _connect_to(stage, f"wss://127.0.0.1:{port}/ws")


@when("publish before connect")
async def _before_connect(stage: Stage) -> NoLagError:
    return await error_of(stage.make().publish(TOPIC, 1))


def _upgrade(status: int) -> Situation:
    async def situation(stage: Stage) -> NoLagError:
        stage.scripted.refusal = (status, {})
        return await error_of(stage.make().connect())

    return situation


when("connect and be answered 404")(_upgrade(404))
when("connect and be answered 503")(_upgrade(503))


def _auth(reason: str) -> Situation:
    async def situation(stage: Stage) -> NoLagError:
        async def rule(link: Link, _frame: Frame) -> None:
            await link.send("auth", success=False, error=reason)

        stage.scripted.rules["auth"] = rule
        return await error_of(stage.make().connect())

    return situation


@when("auth is not answered")
async def _auth_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["auth"] = silent
    return await error_of(stage.make(auth_timeout=0.1).connect())


@when("ask for presence and be cut")
async def _presence_cut(stage: Stage) -> NoLagError:
    stage.scripted.rules["getPresence"] = silent
    client, link = await stage.connected()
    asking = asyncio.create_task(client.fetch_presence("general"))
    await link.next("getPresence")
    link.cut()
    return await error_of(asking)


@when("publish without reconnection and be cut")
async def _publish_cut(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = silent
    client, link = await stage.connected(reconnect=False)
    publishing = asyncio.create_task(client.publish(TOPIC, 1))
    await link.next("publish")
    link.cut()
    return await error_of(publishing)


async def told(client: NoLag, happen: Callable[[], Any]) -> NoLagError:
    """Give the first `error` event."""
    errors = Heard()
    client.on("error", errors)
    done = happen()
    if asyncio.iscoroutine(done):
        await done
    error = await errors.next()
    assert isinstance(error, NoLagError)
    return error


@when("the broker falls silent")
async def _silence(stage: Stage) -> NoLagError:
    client, link = await stage.connected(heartbeat_interval=0.05, heartbeat_timeout=0.1)
    return await told(client, link.freeze)


@when("the broker closes with 1002")
async def _close_1002(stage: Stage) -> NoLagError:
    client, link = await stage.connected()
    return await told(client, lambda: link.close(1002))


@when("publish is answered")
async def _publish_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = stage.answer()
    client, _ = await stage.connected()
    return await error_of(client.publish(TOPIC, 1))


@when("publish to a wildcard")
async def _publish_to_a_wildcard(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(client.publish("demo/+/messages", 1))


@when("the broker takes a subscription away")
async def _taken_away(stage: Stage) -> NoLagError:
    client, link = await stage.connected()
    await client.subscribe(TOPIC)
    return await told(
        client, lambda: link.send("unsubscribed", topic=TOPIC, reason="not_authorized")
    )


@when("subscribe is answered")
async def _subscribe_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["subscribe"] = stage.answer()
    client, _ = await stage.connected()
    return await error_of(client.subscription(TOPIC).ready())


@when("a lobby is answered")
async def _lobby_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["lobbySubscribe"] = stage.answer()
    client, _ = await stage.connected()
    return await error_of(client.set_app("demo").set_lobby("lounge").subscribe())


@when("presence is answered")
async def _presence_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["presence"] = stage.answer()
    client, _ = await stage.connected()
    return await told(client, lambda: client.set_presence({}, "attic"))


@when("publish is not answered")
async def _publish_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = silent
    client, _ = await stage.connected(ack_timeout=0.1)
    return await error_of(client.publish(TOPIC, 1))


@when("subscribe is not answered")
async def _subscribe_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["subscribe"] = silent
    client, _ = await stage.connected(ack_timeout=0.1)
    heard = Heard()
    await client.subscribe(TOPIC, callback=heard)
    error = await heard.next()
    assert isinstance(error, NoLagError)
    return error


@when("presence is not answered")
async def _presence_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["getPresence"] = silent
    client, _ = await stage.connected(presence_timeout=0.1)
    return await error_of(client.fetch_presence("general"))


@when("a lobby is not answered")
async def _lobby_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["getLobbyPresence"] = silent
    client, _ = await stage.connected(ack_timeout=0.1)
    return await error_of(client.set_app("demo").set_lobby("lounge").fetch_presence())


@when("flush does not end")
async def _flush_not_ended(stage: Stage) -> NoLagError:
    client = await stage.offline()
    await client.emit(TOPIC, 1)
    return await error_of(client.flush(timeout=0.05))


@when("publish offline into a full queue")
async def _full_queue(stage: Stage) -> NoLagError:
    client = await stage.offline(offline_queue={"max_messages": 1})
    await client.emit(TOPIC, 1)
    return await error_of(client.publish(TOPIC, 2))


@when("wait offline for too long")
async def _too_long_offline(stage: Stage) -> NoLagError:
    client = await stage.offline()
    return await error_of(client.publish(TOPIC, 1, ttl=0.05))


@when("publish more than the limit")
async def _too_large(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(client.publish(TOPIC, b"x" * 921_600))


@when("publish offline more than the queue holds")
async def _larger_than_the_queue(stage: Stage) -> NoLagError:
    client = await stage.offline(offline_queue={"max_bytes": 10})
    return await error_of(client.publish(TOPIC, b"x" * 100))


@when("publish what cannot be written")
async def _not_encodable(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(client.publish(TOPIC, object()))


@when("publish after close")
async def _after_close(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    await client.close()
    return await error_of(client.publish(TOPIC, 1))


@when("publish and disconnect")
async def _publish_and_disconnect(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = silent
    client, link = await stage.connected()
    publishing = asyncio.create_task(client.publish(TOPIC, 1))
    await link.next("publish")
    client.disconnect()
    return await error_of(publishing)


@when("give up reconnecting")
async def _give_up(stage: Stage) -> NoLagError:
    client, link = await stage.connected(max_reconnect_attempts=1)
    failed = Heard()
    client.on("failed", failed)
    stage.scripted.refusal = (503, {})
    link.cut()
    error = await failed.next()
    assert isinstance(error, NoLagError)
    return error


@pytest.mark.parametrize(
    "expected", TABLE, ids=lambda row: f"{row['class']}-{row['code']}-{row['when']}"
)
async def test_the_table(
    clients: Clients,
    scripted: ScriptedBroker,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, Any],
) -> None:
    """Class, code and flags of each (API-094)."""
    monkeypatch.delenv("NOLAG_URL", raising=False)
    words = expected["when"]
    reason = words.removeprefix("auth is answered ")
    situation = SITUATIONS[words] if reason == words else _auth(reason)
    error = await situation(Stage(clients, scripted, expected))
    code = error.error if isinstance(error, nolag.NoLagServerError) else error.code
    assert {
        "class": type(error),
        "code": code,
        "serverCode": error.server_code,
        "maxSizeBytes": getattr(error, "max_size_bytes", None),
        "retryable": error.retryable,
        "fatal": error.fatal,
        "outcomeUnknown": error.outcome_unknown,
    } == {
        "class": getattr(nolag, expected["class"]),
        "code": expected["code"],
        "serverCode": expected.get("serverCode"),
        "maxSizeBytes": expected.get("maxSizeBytes"),
        "retryable": expected.get("retryable", False),
        "fatal": expected.get("fatal", False),
        "outcomeUnknown": expected.get("outcomeUnknown", False),
    }
    if "message" in expected:
        assert str(error) == expected["message"]
    assert str(error)


def test_the_table_is_whole() -> None:
    """Every code that client-api 4 names is in it, but for two that take seconds to come."""
    named = (
        "url_required bad_url bad_option unsupported_runtime not_connected dns refused tls "
        "handshake_rejected connect_timeout lost heartbeat_timeout protocol_error access_denied "
        "token_expired token_revoked token_not_found project_not_found auth_timeout "
        "broker_unavailable connection_limit_reached monthly_quota_exceeded message_too_large "
        "unknown_topic access_revoked wake_failed invalid_filter invalid_message invalid_topic "
        "unknown_room not_authorized ack_timeout presence_timeout lobby_timeout flush_timeout "
        "queue_full queue_expired too_large encode closed reconnect_exhausted"
    )
    codes = {row["code"] for row in TABLE}
    assert set(named.split()) <= codes
