"""A program that is never run: mypy and pyright must find the types that it claims (API-087)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nolag import (
    ActorPresence,
    ActorType,
    ConnectionStatus,
    EmitOptions,
    LobbyPresenceEvent,
    Message,
    MessageMeta,
    NoLag,
    NoLagError,
    NoLagOptions,
    OfflineQueueOptions,
    Position,
    QoS,
    Receipt,
    SubscribeOptions,
    Token,
    TokenRequest,
)
from typing_extensions import assert_type

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def token(request: TokenRequest) -> Token:
    """Be a provider."""
    assert_type(request.reason, str)
    return Token("text", expires_at=0.0)


def on_message(data: Any, meta: MessageMeta) -> None:
    """Be a handler of messages."""
    assert_type(meta.sender, str | None)
    assert_type(meta.is_replay, bool)
    print(data)


def on_lobby(event: LobbyPresenceEvent) -> None:
    """Be a handler of lobbies."""
    assert_type(event.actor_id, str)


def on_answer(error: Exception | None) -> None:
    """Be a callback."""
    assert_type(error, Exception | None)


def features(client: NoLag) -> None:
    """Use what a broker may grant."""
    assert_type(client.features, frozenset[str])
    again = client.subscription("a/b/c", resume_from={"epoch": "e", "seq": 1}, history=20)
    assert_type(again.position, Position | None)
    assert_type(client.position("a/b/c"), Position | None)
    SubscribeOptions(load_balance=True, redeliver=True, ack_timeout=5)
    SubscribeOptions(resume_from=Position("e", 1))
    client.notify_offline()


async def main() -> None:
    """Use what there is."""
    options = NoLagOptions(
        url="ws://localhost:8080/ws",
        qos=QoS.AT_LEAST_ONCE,
        offline_queue=OfflineQueueOptions(max_messages=10),
        features=["recover", "dedupe"],
    )
    NoLag("token", {"url": "ws://localhost:8080/ws"})
    NoLag(token, url="ws://localhost:8080/ws", qos=2)
    NoLag(lambda: "token")
    async with NoLag("token", options) as client:
        assert_type(client, NoLag)
        assert_type(client.connected, bool)
        assert_type(client.status, ConnectionStatus)
        assert_type(client.actor_id, str | None)
        assert_type(client.actor_type, ActorType | str | None)

        assert_type(client.on("a/b/c", on_message), NoLag)
        client.on("connect", lambda: None).on("disconnect", print)

        @client.on("a/b/d")
        async def later(data: Any, meta: MessageMeta) -> None:
            on_message(data, meta)

        assert_type(await later(1, MessageMeta()), None)

        await client.subscribe("a/b/c", SubscribeOptions(filters=["x", ["y", "z"]]), on_answer)
        await client.subscribe("a/b/c", on_message)
        await client.subscribe("a/b/c", on_message, SubscribeOptions(qos=QoS.EXACTLY_ONCE))
        await client.subscribe("a/b/c", callback=on_answer)

        receipt = await client.emit("a/b/c", {"text": "hello"}, EmitOptions(retain=True))
        assert_type(receipt, Receipt)
        assert_type(receipt.outcome, str)
        assert_type(receipt.error, NoLagError | None)
        assert_type(await receipt.wait(), Receipt)
        assert_type(await client.publish("a/b/c", b"bytes", qos=0, echo=False), Receipt)

        async with client.subscription("a/b/c", filters=["x"]) as subscription:
            assert_type(subscription.topic, str)
            async for message in subscription:
                assert_type(message, Message)
                assert_type(message.meta, MessageMeta)
                message.ack()
        async for message in client.messages("a/b/c", history=20):
            assert_type(message, Message)

        room = client.set_app("a").set_room("b")
        room.on("c", on_message).off("c", on_message)
        await room.set_presence({"seat": 1})
        assert_type(await room.fetch_presence(), list[ActorPresence])
        assert_type(client.get_presence("alice"), ActorPresence | None)
        assert_type(client.get_all_presence(), list[ActorPresence])

        lobby = client.set_app("a").set_lobby("lounge")
        lobby.on("presence:join", on_lobby)
        state = await lobby.subscribe()
        for actors in state.values():
            for record in actors.values():
                print(record["name"])
        async for kind, event in lobby.events():
            assert_type(kind, str)
            assert_type(event, LobbyPresenceEvent)

        assert_type(client.threadsafe.publish("a/b/c", 1).result(), Receipt)
        assert_type(client.stats().published, int)
        done: Awaitable[None] = client.disconnect()
        await done
