"""Where the token comes from, and where it must not go."""

import asyncio
import logging
import time
from typing import Any

import pytest
from kit.clients import Clients
from kit.heard import Heard, until, within
from kit.scripted import Frame, Link, ScriptedBroker, agree
from nolag import AuthError, NoLag, NoLagError, Token, TokenRequest

TOPIC = "demo/general/messages"


def only(*accepted: str, error: str = "token_expired") -> Any:
    """Make a rule that takes these tokens, and refuses others."""

    async def rule(link: Link, frame: Frame) -> None:
        if frame["token"] in accepted:
            await agree(link, frame)
        else:
            await link.send("auth", success=False, error=error)

    return rule


class TestProvider:
    """A function that is asked for the token."""

    @pytest.mark.parametrize("kind", ["async", "plain", "without request", "option"])
    async def test_it_is_asked_first(self, scripted: ScriptedBroker, kind: str) -> None:
        """Before every `auth`, and what it gives is what is sent (API-072, K-016, FC-01)."""
        requests: list[TokenRequest] = []

        def give(request: TokenRequest) -> str:
            requests.append(request)
            return f"token-{len(requests)}"

        async def give_later(request: TokenRequest) -> str:
            await asyncio.sleep(0.01)
            return give(request)

        count = iter(range(1, 9))
        if kind == "option":
            client = NoLag("unused", url=scripted.url, token_provider=give_later)
        elif kind == "without request":
            client = NoLag(lambda: f"token-{next(count)}", url=scripted.url)
        else:
            provider = give_later if kind == "async" else give
            client = NoLag(provider, url=scripted.url, reconnect_interval=0.05)
        try:
            await client.connect()
            link = await scripted.link()
            assert (await link.next("auth"))["token"] == "token-1"
            link.cut()
            second = await scripted.link()
            assert (await second.next("auth"))["token"] == "token-2"
        finally:
            client.disconnect()
        if requests:
            assert [request.reason for request in requests] == ["initial", "reconnect"]
            assert requests[0].attempt == 1

    async def test_a_failure_is_tried_again(self, scripted: ScriptedBroker) -> None:
        """It is a failed attempt like another (API-072)."""
        calls: list[int] = []
        running = 0

        async def provide(_request: TokenRequest) -> str:
            nonlocal running
            running += 1
            assert running == 1, "asked while being asked"
            calls.append(1)
            await asyncio.sleep(0.02)
            running -= 1
            if len(calls) < 3:
                message = "the token service is down"
                raise OSError(message)
            return "token"

        client = NoLag(provide, url=scripted.url, initial_connect="wait", reconnect_interval=0.02)
        try:
            await within(asyncio.gather(client.connect(), client.connect()))
            assert client.connected
            assert len(calls) == 3
            assert len(scripted.frames("auth")) == 1
        finally:
            client.disconnect()

    async def test_a_failure_is_told(self, scripted: ScriptedBroker) -> None:
        """With what the provider said as its cause."""

        async def provide(_request: TokenRequest) -> str:
            message = "the token service is down"
            raise OSError(message)

        client = NoLag(provide, url=scripted.url)
        with pytest.raises(NoLagError, match="the token service is down") as raised:
            await client.connect()
        assert raised.value.retryable
        assert client.state == "failed"

    async def test_one_that_never_answers(self, scripted: ScriptedBroker) -> None:
        """It is not waited for without end (client-api 11)."""

        async def provide(_request: TokenRequest) -> str:
            await asyncio.sleep(3600)
            return "too late"

        client = NoLag(provide, url=scripted.url, auth_timeout=0.1)
        with pytest.raises(NoLagError):
            await within(client.connect())

    async def test_a_token_that_is_refused(self, scripted: ScriptedBroker) -> None:
        """It is asked once more, for another one (FC-02, K-015)."""
        scripted.rules["auth"] = only("fresh")
        reasons: list[str] = []

        async def provide(request: TokenRequest) -> str:
            reasons.append(request.reason)
            return "stale" if request.reason == "initial" else "fresh"

        client = NoLag(provide, url=scripted.url, initial_connect="wait", reconnect_interval=0.02)
        try:
            await within(client.connect())
            assert reasons == ["initial", "expired"]
            assert [frame["token"] for frame in scripted.frames("auth")] == ["stale", "fresh"]
        finally:
            client.disconnect()

    async def test_the_same_one_again(self, scripted: ScriptedBroker) -> None:
        """There is no use in that (API-074)."""
        scripted.rules["auth"] = only("fresh", error="access_denied")
        asked: list[str] = []

        async def provide(request: TokenRequest) -> str:
            asked.append(request.reason)
            return "stale"

        client = NoLag(provide, url=scripted.url, initial_connect="wait", reconnect_interval=0.02)
        with pytest.raises(AuthError) as raised:
            await within(client.connect())
        assert (raised.value.code, raised.value.fatal) == ("access_denied", True)
        assert asked == ["initial", "rejected"]
        assert client.state == "failed"

    async def test_expiry_on_a_live_connection(self, scripted: ScriptedBroker) -> None:
        """A close 4003 is one question to the provider, and a reconnection (API-073)."""
        reasons: list[str] = []

        async def provide(request: TokenRequest) -> str:
            reasons.append(request.reason)
            return f"token-{len(reasons)}"

        client = NoLag(provide, url=scripted.url, reconnect_interval=0.02)
        back = Heard()
        client.on("reconnect", back)
        try:
            await client.connect()
            await (await scripted.link()).close(4003, "token_expired")
            await back.next()
            assert reasons == ["initial", "expired"]
            assert scripted.frames("auth")[1]["token"] == "token-2"
        finally:
            client.disconnect()

    async def test_a_renewal_in_time(self, scripted: ScriptedBroker) -> None:
        """Before its end a token is replaced on the live connection (API-073, K-017)."""

        async def renew(link: Link, _frame: Frame) -> None:
            await link.send("reauth", success=True)

        scripted.rules["reauth"] = renew
        expiries = iter([time.time() + 5.2, time.time() + 3600])
        tokens = iter(["short", "long"])

        async def provide(_request: TokenRequest) -> Token:
            return Token(next(tokens), next(expiries))

        client = NoLag(provide, url=scripted.url, token_refresh_margin=60)
        try:
            await client.connect()
            link = await scripted.link()
            # No sooner than 5 s after connecting, says the protocol.
            assert (await link.next("reauth"))["token"] == "long"
            await until(lambda: client.connected)
            assert scripted.attempts == 1
        finally:
            client.disconnect()

    async def test_another_static_token(self, clients: Clients, scripted: ScriptedBroker) -> None:
        """`update_token` counts from the next connection on (client-api 11)."""
        client, link = await clients.link(scripted)
        client.update_token("second")
        link.cut()
        second = await scripted.link()
        assert (await second.next("auth"))["token"] == "second"


class TestSecrecy:
    """A token is seen by the broker alone."""

    async def test_nothing_shows_it(
        self, scripted: ScriptedBroker, caplog: pytest.LogCaptureFixture, capfd: Any
    ) -> None:
        """Neither logs nor errors nor descriptions (API-075, API-096, K-058)."""
        caplog.set_level(1)
        logging.getLogger("nolag").setLevel(1)
        token, secret = "t0ken-of-alice", "payload-of-alice"
        scripted.rules["auth"] = only(token)
        client = NoLag(token, url=scripted.url, debug=True, reconnect_interval=0.02)
        shown: list[Any] = [client]
        events = Heard()
        for event in ("error", "failed", "state", "disconnect"):
            client.on(event, events)
        try:
            await client.connect()
            await client.subscribe(TOPIC)
            await client.publish(TOPIC, {"secret": secret})
            link = await scripted.link()
            await link.message(TOPIC, {"secret": secret})
            link.cut()
            second = await scripted.link()
            await second.next("subscribe")
            client.update_token("wr0ng-token")
            second.cut()
            await until(lambda: client.state == "failed")
        finally:
            client.disconnect()
        shown += [*events.rest(), client.stats(), Token("t0ken-of-alice"), caplog.text]
        output = capfd.readouterr()
        shown += [output.out, output.err]
        text = "\n".join(f"{thing!r} {thing}" for thing in shown)
        assert "t0ken" not in text
        assert "wr0ng" not in text
        assert secret not in text
        # It does say what happens.
        assert "publish" in caplog.text
        assert "connected" in caplog.text
