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


class Stage:
    """What the situations have at hand."""

    def __init__(self, clients: Clients, scripted: ScriptedBroker, expected: dict[str, Any]) -> None:
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
        fields = {wire: self.expected[name] for name, wire in names.items() if name in self.expected}
        return refuse(error=self.expected["code"], **fields)


async def error_of(awaitable: Awaitable[Any]) -> NoLagError:
    """Give what it raises."""
    with pytest.raises(NoLagError) as raised:
        await within(awaitable)
    return raised.value


async def connect_without_a_url(stage: Stage) -> NoLagError:
    return await error_of(NoLag("token").connect())


async def connect_to(stage: Stage, url: str, **options: Any) -> NoLagError:
    return await error_of(stage.make(url, **options).connect())


async def an_unknown_option(stage: Stage) -> NoLagError:
    with pytest.raises(NoLagError) as raised:
        stage.make(what=1)
    return raised.value


async def a_foreign_loop(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(asyncio.to_thread(lambda: asyncio.run(_flush(client))))


async def _flush(client: NoLag) -> None:
    await client.flush()


async def nobody_listens(stage: Stage) -> NoLagError:
    with closed_port() as url:
        return await connect_to(stage, url)


async def a_silent_port(stage: Stage) -> NoLagError:
    with silent_port() as url:
        return await connect_to(stage, url, connect_timeout=0.1)


def upgrade(status: int) -> Callable[[Stage], Awaitable[NoLagError]]:
    async def situation(stage: Stage) -> NoLagError:
        stage.scripted.refusal = (status, {})
        return await error_of(stage.make().connect())

    return situation


def auth(reason: str) -> Callable[[Stage], Awaitable[NoLagError]]:
    async def situation(stage: Stage) -> NoLagError:
        async def rule(link: Link, _frame: Frame) -> None:
            await link.send("auth", success=False, error=reason)

        stage.scripted.rules["auth"] = rule
        return await error_of(stage.make().connect())

    return situation


async def auth_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["auth"] = silent
    return await error_of(stage.make(auth_timeout=0.1).connect())


async def presence_cut(stage: Stage) -> NoLagError:
    stage.scripted.rules["getPresence"] = silent
    client, link = await stage.connected()
    asking = asyncio.create_task(client.fetch_presence("general"))
    await link.next("getPresence")
    link.cut()
    return await error_of(asking)


async def publish_cut(stage: Stage) -> NoLagError:
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


async def silence(stage: Stage) -> NoLagError:
    client, link = await stage.connected(heartbeat_interval=0.05, heartbeat_timeout=0.1)
    return await told(client, link.freeze)


async def close_1002(stage: Stage) -> NoLagError:
    client, link = await stage.connected()
    return await told(client, lambda: link.close(1002))


async def publish_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = stage.answer()
    client, _ = await stage.connected()
    return await error_of(client.publish(TOPIC, 1))


async def publish_to_a_wildcard(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(client.publish("demo/+/messages", 1))


async def taken_away(stage: Stage) -> NoLagError:
    client, link = await stage.connected()
    await client.subscribe(TOPIC)
    return await told(
        client, lambda: link.send("unsubscribed", topic=TOPIC, reason="not_authorized")
    )


async def subscribe_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["subscribe"] = stage.answer()
    client, _ = await stage.connected()
    return await error_of(client.subscription(TOPIC).ready())


async def lobby_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["lobbySubscribe"] = stage.answer()
    client, _ = await stage.connected()
    return await error_of(client.set_app("demo").set_lobby("lounge").subscribe())


async def presence_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["presence"] = stage.answer()
    client, _ = await stage.connected()
    return await told(client, lambda: client.set_presence({}, "attic"))


async def publish_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = silent
    client, _ = await stage.connected(ack_timeout=0.1)
    return await error_of(client.publish(TOPIC, 1))


async def subscribe_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["subscribe"] = silent
    client, _ = await stage.connected(ack_timeout=0.1)
    heard = Heard()
    await client.subscribe(TOPIC, callback=heard)
    error = await heard.next()
    assert isinstance(error, NoLagError)
    return error


async def presence_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["getPresence"] = silent
    client, _ = await stage.connected(presence_timeout=0.1)
    return await error_of(client.fetch_presence("general"))


async def lobby_not_answered(stage: Stage) -> NoLagError:
    stage.scripted.rules["getLobbyPresence"] = silent
    client, _ = await stage.connected(ack_timeout=0.1)
    return await error_of(client.set_app("demo").set_lobby("lounge").fetch_presence())


async def flush_not_ended(stage: Stage) -> NoLagError:
    client = await stage.offline()
    await client.emit(TOPIC, 1)
    return await error_of(client.flush(timeout=0.05))


async def full_queue(stage: Stage) -> NoLagError:
    client = await stage.offline(offline_queue={"max_messages": 1})
    await client.emit(TOPIC, 1)
    return await error_of(client.publish(TOPIC, 2))


async def too_long_offline(stage: Stage) -> NoLagError:
    client = await stage.offline()
    return await error_of(client.publish(TOPIC, 1, ttl=0.05))


async def too_large(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(client.publish(TOPIC, b"x" * 921_600))


async def larger_than_the_queue(stage: Stage) -> NoLagError:
    client = await stage.offline(offline_queue={"max_bytes": 10})
    return await error_of(client.publish(TOPIC, b"x" * 100))


async def not_encodable(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    return await error_of(client.publish(TOPIC, object()))


async def after_close(stage: Stage) -> NoLagError:
    client, _ = await stage.connected()
    await client.close()
    return await error_of(client.publish(TOPIC, 1))


async def publish_and_disconnect(stage: Stage) -> NoLagError:
    stage.scripted.rules["publish"] = silent
    client, link = await stage.connected()
    publishing = asyncio.create_task(client.publish(TOPIC, 1))
    await link.next("publish")
    client.disconnect()
    return await error_of(publishing)


async def give_up(stage: Stage) -> NoLagError:
    client, link = await stage.connected(max_reconnect_attempts=1)
    failed = Heard()
    client.on("failed", failed)
    stage.scripted.refusal = (503, {})
    link.cut()
    error = await failed.next()
    assert isinstance(error, NoLagError)
    return error


SITUATIONS: dict[str, Callable[[Stage], Awaitable[NoLagError]]] = {
    "connect without a URL": connect_without_a_url,
    "connect to ftp://": lambda stage: connect_to(stage, "ftp://127.0.0.1/ws"),
    "an option that does not exist": an_unknown_option,
    "a call where the client cannot work": a_foreign_loop,
    "publish before connect": lambda stage: error_of(stage.make().publish(TOPIC, 1)),
    "connect to an unknown host": lambda stage: connect_to(stage, "ws://nowhere.invalid/ws"),
    "connect where nobody listens": nobody_listens,
    "connect by TLS to a server without": lambda stage: connect_to(
        stage, stage.scripted.url.replace("ws:", "wss:")
    ),
    "connect and be answered 404": upgrade(404),
    "connect and be answered 503": upgrade(503),
    "connect to a silent port": a_silent_port,
    "ask for presence and be cut": presence_cut,
    "publish without reconnection and be cut": publish_cut,
    "the broker falls silent": silence,
    "the broker closes with 1002": close_1002,
    "auth is not answered": auth_not_answered,
    "publish is answered": publish_answered,
    "publish to a wildcard": publish_to_a_wildcard,
    "the broker takes a subscription away": taken_away,
    "subscribe is answered": subscribe_answered,
    "a lobby is answered": lobby_answered,
    "presence is answered": presence_answered,
    "publish is not answered": publish_not_answered,
    "subscribe is not answered": subscribe_not_answered,
    "presence is not answered": presence_not_answered,
    "a lobby is not answered": lobby_not_answered,
    "flush does not end": flush_not_ended,
    "publish offline into a full queue": full_queue,
    "wait offline for too long": too_long_offline,
    "publish more than the limit": too_large,
    "publish offline more than the queue holds": larger_than_the_queue,
    "publish what cannot be written": not_encodable,
    "publish after close": after_close,
    "publish and disconnect": publish_and_disconnect,
    "give up reconnecting": give_up,
}


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
    when = expected["when"]
    reason = when.removeprefix("auth is answered ")
    situation = SITUATIONS[when] if reason == when else auth(reason)
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
    named = {
        "url_required bad_url bad_option unsupported_runtime not_connected dns refused tls "
        "handshake_rejected connect_timeout lost heartbeat_timeout protocol_error access_denied "
        "token_expired token_revoked token_not_found project_not_found auth_timeout "
        "broker_unavailable connection_limit_reached monthly_quota_exceeded message_too_large "
        "unknown_topic access_revoked wake_failed invalid_filter invalid_message invalid_topic "
        "unknown_room not_authorized ack_timeout presence_timeout lobby_timeout flush_timeout "
        "queue_full queue_expired too_large encode closed reconnect_exhausted"
    }
    codes = {row["code"] for row in TABLE}
    assert set(*(names.split() for names in named)) <= codes
