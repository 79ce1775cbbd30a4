"""How a connection begins and ends by the application's will."""

import asyncio
import gc
import threading
from typing import Any

import pytest
from kit.broker import Broker, Connect
from kit.clients import Clients
from kit.heard import PATIENCE, Heard, until, within
from kit.net import closed_port, silent_port
from kit.scripted import Frame, Link, Rule, ScriptedBroker, silent
from nolag import (
    AuthError,
    ConfigError,
    ConnectionStatus,
    NoLag,
    NoLagError,
    NoLagOptions,
    NotConnectedError,
)


def refuse_auth(error: str) -> Rule:
    """Make a rule that answers `auth` with a failure, and leaves the connection open."""

    async def rule(link: Link, _frame: Frame) -> None:
        await link.send("auth", success=False, error=error)

    return rule


class TestConnect:
    """The call, its outcome, and who may share it."""

    def test_a_new_client_does_nothing(self) -> None:
        """No thread is started, and no loop is needed, to make a client (API-001)."""
        threads = threading.active_count()
        client = NoLag("token", NoLagOptions(url="ws://127.0.0.1:9/ws"))
        client.on("connect", print).set_app("demo").set_room("general").on("messages", print)
        assert threading.active_count() == threads
        assert client.status is ConnectionStatus.DISCONNECTED
        assert client.state == "idle"
        assert not client.connected

    async def test_without_a_url(
        self, broker: Broker, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`connect` says at once what is missing; once it is there it works (API-002)."""
        monkeypatch.delenv("NOLAG_URL", raising=False)
        options = NoLagOptions()
        client = NoLag("dev-token-alice", options)
        with pytest.raises(ConfigError, match="url") as raised:
            await client.connect()
        assert raised.value.code == "url_required"
        assert client.status is ConnectionStatus.DISCONNECTED

        options.url = broker.url
        await client.connect()
        assert client.connected
        client.disconnect()

        monkeypatch.setenv("NOLAG_URL", broker.url)
        client = clients.make(None)
        await client.connect()
        assert client.connected

    @pytest.mark.parametrize(
        "form", ["http://127.0.0.1:{}", "ws://127.0.0.1:{}/", "ws://localhost:{}"]
    )
    async def test_forms_of_a_url(self, broker: Broker, clients: Clients, form: str) -> None:
        """`http` stands for `ws`, and no path for `/ws` (client-api 5)."""
        client = await clients.connect(form.format(broker.port))
        assert client.connected

    async def test_who_one_is(self, connect: Connect) -> None:
        """The answer to `auth` fills the client's properties."""
        alice = await connect("alice")
        assert (alice.actor_id, alice.project_id) == ("alice", "demo-project")
        assert alice.actor_type == "user"
        assert alice.protocol_version == 2
        assert alice.status is ConnectionStatus.CONNECTED
        assert alice.state == "connected"

    async def test_what_the_broker_is_told(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """`auth` comes first, with version and client id, and never `reconnect` (K-003, K-019)."""
        _, first = await clients.link(scripted)
        first.cut()
        second = await scripted.link()
        frames = [await link.next("auth") for link in (first, second)]
        assert first.frames[0] is frames[0]
        for frame in frames:
            assert frame["token"] == "dev-token-alice"
            assert frame["protocolVersion"] == 2
            assert "reconnect" not in frame
        assert frames[0]["clientId"] == frames[1]["clientId"]
        assert len(frames[0]["clientId"]) == 16

        _, other = await clients.link(scripted, client_id="desk-7")
        assert (await other.next("auth"))["clientId"] == "desk-7"

    async def test_several_calls_share_one_attempt(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """Two calls open one socket, and one on a live connection ends at once (API-003)."""
        client = clients.make(scripted.url)
        await within(asyncio.gather(client.connect(), client.connect()))
        await within(client.connect())
        assert client.connected
        assert scripted.attempts == 1

    async def test_states_agree_with_events(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """What a handler reads is what its event says (API-005)."""
        client = clients.make(scripted.url)
        seen: list[tuple[str, bool, ConnectionStatus]] = []
        for event in ("connect", "disconnect", "reconnect"):
            client.on(
                event,
                lambda *_, event=event: seen.append((event, client.connected, client.status)),
            )
        back = Heard()
        client.on("reconnect", back)
        await client.connect()
        (await scripted.link()).cut()
        await back.next()
        client.disconnect()
        assert seen == [
            ("connect", True, ConnectionStatus.CONNECTED),
            ("disconnect", False, ConnectionStatus.RECONNECTING),
            ("connect", True, ConnectionStatus.CONNECTED),
            ("reconnect", True, ConnectionStatus.CONNECTED),
            ("disconnect", False, ConnectionStatus.DISCONNECTED),
        ]

    @pytest.mark.parametrize("actor_type", ["robot", None])
    async def test_an_actor_of_an_unknown_type(
        self, clients: Clients, scripted: ScriptedBroker, actor_type: str | None
    ) -> None:
        """It is kept as text, and no project is no error (K-005)."""

        async def answer(link: Link, _frame: Frame) -> None:
            await link.send("auth", success=True, actorTokenId="a", actorType=actor_type)

        scripted.rules["auth"] = answer
        client = await clients.connect(scripted.url)
        assert client.actor_type == actor_type
        assert client.project_id is None
        assert client.protocol_version == 1


class TestFailing:
    """First attempts that come to nothing."""

    async def test_a_wrong_token(self, broker: Broker, clients: Clients) -> None:
        """It is refused once, and that ends it (API-020, FC-02)."""
        client = clients.make(broker.url, "nobody")
        failed, errors = Heard(), Heard()
        client.on("failed", failed).on("error", errors)
        with pytest.raises(AuthError, match="access_denied") as raised:
            await client.connect()
        assert (raised.value.code, raised.value.fatal) == ("access_denied", True)
        assert client.state == "failed"
        assert client.status is ConnectionStatus.DISCONNECTED
        assert (await failed.next()).code == "access_denied"
        assert (await errors.next()).code == "access_denied"
        assert errors.is_silent()

    async def test_it_is_refused_once(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """One attempt, and the client closes what the broker left open (API-020, K-006, K-009)."""
        scripted.rules["auth"] = refuse_auth("access_denied")
        client = clients.make(scripted.url, initial_connect="background")
        with pytest.raises(AuthError):
            await client.connect()
        link = await scripted.link()
        await within(link.closed.wait())
        assert scripted.attempts == 1
        assert len(scripted.frames("auth")) == 1

        scripted.rules.clear()
        await client.connect()
        assert client.connected

    @pytest.mark.parametrize(
        "error", ["authentication_failed", "connection_failed", "broker_unavailable"]
    )
    async def test_a_refusal_that_may_pass(
        self, clients: Clients, scripted: ScriptedBroker, error: str
    ) -> None:
        """It fails the call; in the background it is tried again if asked for (API-021, K-007)."""
        scripted.rules["auth"] = refuse_auth(error)
        once = clients.make(scripted.url)
        with pytest.raises(AuthError) as raised:
            await once.connect()
        assert raised.value.retryable
        assert once.state == "failed"

        again = clients.make(scripted.url, initial_connect="background")
        connected = Heard()
        again.on("connect", connected)
        with pytest.raises(AuthError):
            await again.connect()
        scripted.rules.clear()
        await connected.next()
        assert again.connected

    async def test_waiting_for_the_first_connection(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """With `initial_connect="wait"` the call outlives failures (client-api 3.2)."""
        scripted.rules["auth"] = refuse_auth("broker_unavailable")
        client = clients.make(scripted.url, initial_connect="wait")
        connecting = asyncio.create_task(client.connect())
        await scripted.attempted(2)
        assert not connecting.done()
        scripted.rules.clear()
        await within(connecting)
        assert client.connected

    async def test_a_broker_that_does_not_answer(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """Neither TCP nor `auth` is waited for without end (K-010)."""
        with silent_port() as url, pytest.raises(NoLagError) as raised:
            await clients.make(url, connect_timeout=0.1).connect()
        assert raised.value.code == "connect_timeout"

        scripted.rules["auth"] = silent
        with pytest.raises(AuthError) as refused:
            await clients.make(scripted.url, auth_timeout=0.1).connect()
        assert refused.value.code == "auth_timeout"
        assert refused.value.retryable

    async def test_giving_up_a_call(self, clients: Clients) -> None:
        """A cancelled `connect` closes its socket, and the client can connect later (API-078)."""
        async with ScriptedBroker() as scripted:
            scripted.rules["auth"] = silent
            client = clients.make(scripted.url)
            connecting = asyncio.create_task(client.connect())
            link = await scripted.link()
            await link.next("auth")
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            await within(link.closed.wait())
            scripted.rules.clear()
            await within(client.connect())
            assert client.connected


class TestDisconnect:
    """`disconnect`, `close`, and what is left of a client afterwards."""

    async def test_it_acts_at_once(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """On return it is done, and told once (API-006, API-086)."""
        client, link = await clients.link(scripted)
        told = Heard()
        client.on("disconnect", told)
        client.disconnect()
        assert client.status is ConnectionStatus.DISCONNECTED
        assert client.state == "closed"
        assert told.rest() == ["Client disconnect"]
        client.disconnect()
        await within(link.closed.wait())
        assert (link.close_code, link.close_reason) == (1000, "Client disconnect")
        assert told.is_silent()

    async def test_it_can_be_awaited(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """Officially `await client.disconnect()` fails (API-086)."""
        client, link = await clients.link(scripted)
        await client.disconnect()
        await within(link.closed.wait())
        await client.disconnect()

    async def test_reconnection_is_not_lost(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """After `disconnect` and `connect` a loss is mended as before (API-007)."""
        client, _ = await clients.link(scripted)
        await client.subscribe("demo/general/messages")
        back = Heard()
        client.on("reconnect", back)
        client.disconnect()
        await client.connect()
        link = await scripted.link()
        assert (await link.next("subscribe"))["topic"] == "demo/general/messages"
        link.cut()
        await back.next()
        await (await scripted.link()).next("subscribe")

    async def test_during_an_outage(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """It is final until `connect`, which needs one connection (FC-04)."""
        client, _ = await clients.link(scripted)
        await client.subscribe("demo/general/messages")
        await scripted.shut()
        await until(lambda: client.status is ConnectionStatus.RECONNECTING)
        client.disconnect()
        client.disconnect()
        attempts = scripted.attempts
        await scripted.open()
        # Some times longer than the longest wait between attempts.
        await asyncio.sleep(0.3)
        assert scripted.attempts == attempts
        assert client.status is ConnectionStatus.DISCONNECTED
        await client.connect()
        link = await scripted.link()
        await link.next("subscribe")
        assert scripted.attempts == attempts + 1
        assert link.types() == ["auth", "subscribe"]

    @pytest.mark.parametrize(
        "state", ["idle", "connecting", "connected", "backoff", "closed", "failed"]
    )
    async def test_closing_twice_in_any_state(
        self, clients: Clients, scripted: ScriptedBroker, state: str
    ) -> None:
        """`close` ends, alone and beside another (API-010)."""
        client = clients.make(scripted.url, initial_connect="background")
        connecting = None
        if state == "connecting":
            scripted.rules["auth"] = silent
            connecting = asyncio.create_task(client.connect())
            await (await scripted.link()).next("auth")
        elif state == "failed":
            scripted.rules["auth"] = refuse_auth("access_denied")
            with pytest.raises(AuthError):
                await client.connect()
        elif state != "idle":
            await client.connect()
        if state == "backoff":
            await scripted.shut()
            await until(lambda: client.state != "connected")
        elif state == "closed":
            await client.close()

        await within(asyncio.gather(client.close(), client.close()))
        await within(client.close())
        assert client.status is ConnectionStatus.DISCONNECTED
        if connecting is not None:
            with pytest.raises(NoLagError) as raised:
                await connecting
            assert raised.value.code == "closed"

    async def test_what_is_pending_fails(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`disconnect` settles every call, and nothing is left to come (FC-11 b)."""
        for kind in ("publish", "subscribe", "getPresence", "lobbySubscribe"):
            scripted.rules[kind] = silent
        client, link = await clients.link(scripted)
        lobby = client.set_app("demo").set_lobby("lounge")
        pending = [
            asyncio.create_task(client.publish("demo/general/messages", 1)),
            asyncio.create_task(client.fetch_presence("general")),
            asyncio.create_task(lobby.subscribe()),
        ]
        subscribed, emitted = Heard(), Heard()
        await client.subscribe("demo/general/messages", callback=subscribed)
        await client.emit("demo/general/messages", 2, callback=emitted)
        for kind in ("publish", "publish", "getPresence", "lobbySubscribe", "subscribe"):
            await link.next(kind)
        client.disconnect()
        for outcome in await within(asyncio.gather(*pending, return_exceptions=True)):
            assert isinstance(outcome, NoLagError)
            assert outcome.code == "closed"
        assert (await subscribed.next()).code == "closed"
        assert (await emitted.next()).code == "closed"

    async def test_a_context_manager(self, broker: Broker) -> None:
        """`async with` connects, and closes in the end."""
        async with NoLag("dev-token-alice", url=broker.url) as client:
            assert client.connected
        assert client.state == "closed"
        with pytest.raises(NoLagError) as raised:
            await client.publish("demo/general/messages", 1)
        assert raised.value.code == "closed"

    async def test_a_context_that_fails(self, broker: Broker) -> None:
        """What was raised inside is what comes out, and the client is closed."""
        client = NoLag("dev-token-alice", url=broker.url)
        with pytest.raises(ZeroDivisionError):
            async with client:
                raise ZeroDivisionError
        assert client.state == "closed"
        with closed_port() as url:
            nowhere = NoLag("dev-token-alice", url=url)
            with pytest.raises(NoLagError) as raised:
                async with nowhere:
                    pytest.fail("there is nobody to connect to")
        assert raised.value.code == "refused"

    async def test_a_forgotten_client(self, scripted: ScriptedBroker) -> None:
        """One that is collected lets go of its socket (API-011, FC-40)."""

        async def use() -> Link:
            client = NoLag("dev-token-alice", url=scripted.url)
            client.on("connect", lambda: client.connected)
            client.on("demo/general/messages", lambda data, meta: (client, data, meta))
            await client.connect()
            await client.subscribe("demo/general/messages")
            link = await scripted.link()
            await link.next("subscribe")
            return link

        link = await use()
        gc.collect()
        await asyncio.wait_for(link.closed.wait(), PATIENCE)

    async def test_verbs_of_a_closed_client(
        self, clients: Clients, scripted: ScriptedBroker
    ) -> None:
        """Each says so, and none hangs (FC-40, Appendix B)."""
        client, _ = await clients.link(scripted)
        await client.close()
        heard = Heard()
        await client.emit("demo/general/messages", 1, callback=heard)
        await client.subscribe("demo/general/messages", callback=heard)
        await client.unsubscribe("demo/general/messages", callback=heard)
        await client.set_filters("demo/general/messages", ["a"], callback=heard)
        assert [str(error) for error in heard.rest()] == ["Not connected"] * 4
        lobby = client.set_app("demo").set_lobby("lounge")
        calls: list[Any] = [
            client.fetch_presence("general"),
            lobby.subscribe(),
            lobby.fetch_presence(),
        ]
        for call in calls:
            with pytest.raises(NotConnectedError, match=r"^Not connected$"):
                await within(call)
        client.ack("some-id")
        client.batch_ack(["some-id"])
        await client.set_presence({"mood": "gone"}, "general")
        await within(client.flush())
