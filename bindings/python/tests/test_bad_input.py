"""Mistakes of users: each is told at the call, says what would be right, and breaks nothing."""

import socket
from typing import Any

import pytest
from kit.broker import Broker, Connect
from kit.clients import Clients
from kit.heard import Heard, outcome, settle
from kit.net import closed_port
from kit.scripted import ScriptedBroker
from nolag import (
    AuthError,
    ConfigError,
    ConnectionError,  # noqa: A004 — the client's
    EmitOptions,
    NoLag,
    NoLagError,
    NoLagOptions,
    NoLagServerError,
    QueueError,
    SubscribeOptions,
)

TOPIC = "demo/general/messages"


class TestUrls:
    """Where there is no broker, or cannot be one."""

    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("ftp://127.0.0.1/ws", "ws"),
            ("127.0.0.1:8080", "ws"),
            ("localhost", "ws"),
            ("ws://", "ws://"),
            ("ws://[::1/ws", "::1"),
            ("ws://user:pass@127.0.0.1/ws", "token"),
            ("ws://127.0.0.1:99999/ws", "99999|port"),
            ("nonsense", "ws"),
            (42, "url|str"),
        ],
    )
    async def test_no_such_url(self, broker: Broker, url: Any, word: str) -> None:
        """`bad_url`, with what would be right; another URL works then."""
        options = NoLagOptions(url=url)
        with pytest.raises(ConfigError, match=word) as raised:
            await NoLag("dev-token-alice", options).connect()
        assert raised.value.code in ("bad_url", "bad_option")
        assert "pass" not in str(raised.value)
        client = NoLag("dev-token-alice", options)
        with pytest.raises(ConfigError):
            await client.connect()
        options.url = broker.url
        await client.connect()
        assert client.connected
        client.disconnect()

    async def test_nobody_listens(self, broker: Broker, clients: Clients) -> None:
        """It says where it looked; a later try may succeed."""
        with closed_port() as url:
            client = clients.make(url)
            with pytest.raises(ConnectionError) as raised:
                await client.connect()
        assert (raised.value.code, raised.value.retryable) == ("refused", True)
        assert url.split("/")[2] in str(raised.value)
        assert isinstance(raised.value, OSError)
        with pytest.raises(ConnectionError):
            await client.connect()

        # The port that nobody listened to is the broker's now.
        port = broker.port
        broker.kill()
        later = clients.make(f"ws://127.0.0.1:{port}/ws")
        with pytest.raises(ConnectionError):
            await later.connect()
        broker.start()
        await later.connect()
        assert later.connected

    async def test_no_such_host(self, clients: Clients) -> None:
        """It names it."""
        client = clients.make("ws://nowhere.invalid/ws")
        with pytest.raises(ConnectionError, match=r"nowhere\.invalid") as raised:
            await client.connect()
        assert raised.value.code == "dns"

    @pytest.mark.parametrize("path", ["/health", "/nothing"])
    async def test_http_without_websocket(
        self, broker: Broker, clients: Clients, path: str
    ) -> None:
        """A server that answers something else says so with its status."""
        client = clients.make(f"ws://127.0.0.1:{broker.port}{path}")
        with pytest.raises(ConnectionError, match=r"200|404|426") as raised:
            await client.connect()
        assert raised.value.code == "handshake_rejected"
        assert client.state == "failed"

    @pytest.mark.parametrize("status", [401, 403, 404, 426, 500, 503])
    async def test_a_refused_upgrade(
        self, clients: Clients, scripted: ScriptedBroker, status: int
    ) -> None:
        """Whether trying again may help depends on the status (client-api 4)."""
        scripted.refusal = (status, {})
        client = clients.make(scripted.url, initial_connect="wait", connect_timeout=0.3)
        with pytest.raises(ConnectionError) as raised:
            await client.connect()
        final = status in (401, 403, 404, 426)
        assert (scripted.attempts == 1) is final
        if final:
            assert str(status) in str(raised.value)
            assert (raised.value.code, raised.value.fatal) == ("handshake_rejected", True)
        scripted.refusal = None
        await client.connect()
        assert client.connected

    async def test_a_redirect(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is not followed; the error names the target."""
        scripted.refusal = (302, {"Location": "wss://elsewhere.example/ws"})
        with pytest.raises(ConnectionError, match=r"elsewhere\.example"):
            await clients.connect(scripted.url)

    async def test_no_websocket_at_all(self, clients: Clients) -> None:
        """A server that speaks something else entirely is an error, and not waited for."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(20)
            url = f"ws://127.0.0.1:{server.getsockname()[1]}/ws"
            client = clients.make(url, initial_connect="once")

            def speak() -> None:
                peer, _ = server.accept()
                with peer:
                    peer.sendall(b"220 mail.example ESMTP\r\n")
                    peer.recv(4096)

            import threading  # noqa: PLC0415 — for this one test

            thread = threading.Thread(target=speak)
            thread.start()
            with pytest.raises(ConnectionError):
                await client.connect()
            thread.join()

    async def test_tls_where_there_is_none(self, broker: Broker, clients: Clients) -> None:
        """`wss` to a server without TLS."""
        client = clients.make(f"wss://127.0.0.1:{broker.port}/ws")
        with pytest.raises(ConnectionError) as raised:
            await client.connect()
        assert (raised.value.code, raised.value.fatal) == ("tls", True)


class TestTokens:
    """Tokens that are none."""

    async def test_a_wrong_one(self, broker: Broker, clients: Clients) -> None:
        """The broker's word, and not the token."""
        client = clients.make(broker.url, "of-a-stranger")
        with pytest.raises(AuthError, match="access_denied") as raised:
            await client.connect()
        assert "of-a-stranger" not in str(raised.value)
        client.update_token("dev-token-alice")
        await client.connect()
        assert client.actor_id == "alice"

    @pytest.mark.parametrize("token", [None, 42, b"bytes"])
    def test_no_token(self, token: Any) -> None:
        """Said when the client is made."""
        with pytest.raises(ConfigError, match="token"):
            NoLag(token, url="ws://127.0.0.1:9/ws")

    async def test_a_provider_that_gives_none(self, broker: Broker) -> None:
        """It is the provider's mistake, and said so."""
        provider: Any = lambda: None  # noqa: E731
        client = NoLag(provider, url=broker.url)
        with pytest.raises(NoLagError, match="token"):
            await client.connect()


class TestOptions:
    """Options that do not exist, or cannot be."""

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"heartbeatInterval": 3}, "heartbeatInterval"),
            ({"heart_beat": 3}, "heart_beat"),
            ({"backoff": {"minimum": 1}}, "minimum"),
            ({"offline_queue": {"size": 1}}, "size"),
            ({"max_reconnect_attempts": -1}, "max_reconnect_attempts"),
            ({"heartbeat_interval": -1}, "heartbeat_interval"),
            ({"connect_timeout": "soon"}, "connect_timeout"),
            ({"connect_timeout": float("nan")}, "connect_timeout"),
            ({"ack_timeout": -0.5}, "ack_timeout"),
            ({"qos": 3}, "qos"),
            ({"qos": "high"}, "qos"),
            ({"ack_mode": "never"}, "ack_mode"),
            ({"initial_connect": "maybe"}, "initial_connect"),
            ({"offline_queue": {"overflow": "explode"}}, "overflow"),
            ({"offline_queue": {"qos0": "perhaps"}}, "qos0"),
            ({"max_in_flight": 0}, "max_in_flight"),
            ({"reconnect": "yes"}, "reconnect"),
            ({"tls": {"ca": "no certificate"}}, "tls|ca|certificate|PEM"),
        ],
        ids=str,
    )
    async def test_of_a_client(self, broker: Broker, options: dict[str, Any], word: str) -> None:
        """By keyword or as a mapping, before anything is sent."""
        by_keyword, as_mapping = {"url": broker.url, **options}, {"url": broker.url, **options}
        for given, keywords in ((None, by_keyword), (as_mapping, {})):
            with pytest.raises(ConfigError, match=word) as raised:
                await NoLag("dev-token-alice", given, **keywords).connect()
            assert raised.value.code == "bad_option"

    def test_of_another_kind(self) -> None:
        """A client's options are `NoLagOptions` or a mapping."""
        with pytest.raises(ConfigError, match="NoLagOptions"):
            NoLag("token", options="ws://127.0.0.1:9/ws")  # type: ignore[arg-type]

    async def test_of_calls(self, connect: Connect) -> None:
        """Said by the call, and the client goes on."""
        alice = await connect("alice")
        calls: list[Any] = [
            lambda: alice.emit(TOPIC, 1, {"ecko": False}),
            lambda: alice.emit(TOPIC, 1, EmitOptions(qos=7)),
            lambda: alice.emit(TOPIC, 1, "options"),  # type: ignore[arg-type]
            lambda: alice.publish(TOPIC, 1, qos=7),
            lambda: alice.publish(TOPIC, 1, ttl=-1),
            lambda: alice.subscribe(TOPIC, {"filter": ["a"]}),
            lambda: alice.subscribe(TOPIC, SubscribeOptions(qos=7)),
            lambda: alice.subscribe(TOPIC, SubscribeOptions(filters="abc")),  # type: ignore[arg-type]
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                await call()
        with pytest.raises(ConfigError):
            alice.subscription(TOPIC, buffer=0)
        assert (await alice.publish(TOPIC, 1)).outcome == "accepted"


class TestTopics:
    """Topics that the broker would refuse are refused without asking it."""

    @pytest.mark.parametrize(
        "topic", ["demo/+/messages", "demo/general/#", "#", "", "x" * 1025], ids=lambda t: t[:16]
    )
    async def test_publishing_to_one(
        self, clients: Clients, scripted: ScriptedBroker, topic: str
    ) -> None:
        """Wildcards are for subscribing (K-037, issue 4)."""
        client, link = await clients.link(scripted)
        with pytest.raises(NoLagServerError) as raised:
            await client.publish(topic, 1)
        assert (raised.value.error, raised.value.code) == ("invalid_topic", 40000)
        assert raised.value.topic == topic
        assert raised.value.hint
        error = await outcome(client.emit, topic, 1)
        assert error.error == "invalid_topic"
        receipt = await client.emit(topic, 1)
        assert isinstance(receipt.error, NoLagServerError)
        assert receipt.error.error == "invalid_topic"
        await settle(client)
        assert [frame["topic"] for frame in link.received("publish")] == ["demo/general/settle"]

    @pytest.mark.parametrize("topic", ["", "demo/gen+eral", "demo/#/messages", "x" * 1025])
    async def test_subscribing_to_one(
        self, clients: Clients, scripted: ScriptedBroker, topic: str
    ) -> None:
        """Wildcards stand for whole levels (K-037)."""
        client, link = await clients.link(scripted)
        errors = Heard()
        client.on("error", errors)
        error = await outcome(client.subscribe, topic)
        assert isinstance(error, NoLagServerError)
        assert error.error == "invalid_topic"
        assert (await errors.next()).error == "invalid_topic"
        await settle(client)
        assert errors.is_silent()
        assert not link.received("subscribe")

    async def test_what_is_no_topic(self, connect: Connect) -> None:
        """A topic is text; another type is a mistake of the program."""
        alice = await connect("alice")
        for topic in (None, 7, b"demo/general/messages"):
            with pytest.raises((TypeError, ConfigError)):
                await alice.publish(topic, 1)  # type: ignore[arg-type]
        assert (await alice.publish(TOPIC, 1)).outcome == "accepted"

    @pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a+b"])
    def test_names(self, name: str) -> None:
        """Apps, rooms and lobbies are single levels (K-057)."""
        client = NoLag("token", url="ws://127.0.0.1:9/ws")
        with pytest.raises(ConfigError):
            client.set_app(name)
        app = client.set_app("demo")
        with pytest.raises(ConfigError):
            app.set_room(name)
        with pytest.raises(ConfigError):
            app.set_lobby(name)

    async def test_topics_of_rooms(self, connect: Connect) -> None:
        """So are their topics (K-057)."""
        room = (await connect("alice")).set_app("demo").set_room("general")
        for name in ("", "a/b", "+"):
            with pytest.raises(NoLagError):
                await room.publish(name, 1)


class TestSize:
    """Payloads over a limit."""

    async def test_over_the_broker_s_limit(self, connect: Connect) -> None:
        """Known from the handshake, so that it is not even sent (API-048, issue 4)."""
        alice = await connect("alice")
        big = b"x" * 921_600
        for _ in range(2):
            with pytest.raises(NoLagError, match=r"too_large|too large") as raised:
                await alice.publish(TOPIC, big)
            assert isinstance(raised.value, (QueueError, NoLagServerError))
        receipt = await alice.emit(TOPIC, big)
        assert receipt.outcome == "failed"
        assert (await alice.publish(TOPIC, b"x" * 921_000)).outcome == "accepted"

    async def test_over_one_s_own(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """The smaller limit counts."""
        client, link = await clients.link(scripted, max_message_size=100)
        with pytest.raises(NoLagError, match=r"too_large|too large"):
            await client.publish(TOPIC, "x" * 100)
        await client.publish(TOPIC, "x" * 90)
        assert len(link.received("publish")) == 1

    async def test_when_only_the_broker_knows(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """Its limit comes with the error (API-048)."""

        async def refuse(link: Any, frame: Any) -> None:
            await link.send(
                "error",
                code=42930,
                error="message_too_large",
                topic=frame["topic"],
                msgRef=frame["msgRef"],
                maxSizeBytes=10,
            )

        scripted.rules["publish"] = refuse
        client, _ = await clients.link(scripted)
        with pytest.raises(NoLagServerError) as raised:
            await client.publish(TOPIC, "x" * 100)
        assert (raised.value.code, raised.value.max_size_bytes) == (42930, 10)
        assert not raised.value.retryable
