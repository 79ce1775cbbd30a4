"""The ways to a broker: TLS with an authority of one's own, proxies, headers.

The core's tests have the cases; here it shows that the options reach it.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
from kit.broker import Broker
from kit.clients import Clients
from kit.scripted import ScriptedBroker
from nolag.errors import ConfigError, ConnectionError  # noqa: A004 — the client's


@asynccontextmanager
async def guarded(authority: trustme.CA, name: str) -> AsyncIterator[ScriptedBroker]:
    """Run a broker that has a certificate of this authority for one name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    async with ScriptedBroker(context) as scripted:
        yield scripted


class TestTls:
    """A private certificate authority (FC-26)."""

    @pytest.mark.parametrize("form", ["text", "bytes", "mapping", "two"])
    async def test_it_is_trusted(self, clients: Clients, form: str) -> None:
        """Given as PEM, in text or bytes, alone or with another."""
        authority = trustme.CA()
        pem = authority.cert_pem.bytes()
        given: Any = {
            "text": {"ca": pem.decode()},
            "bytes": {"ca": pem},
            "mapping": {"ca": pem},
            "two": {"ca": trustme.CA().cert_pem.bytes() + pem},
        }[form]
        async with guarded(authority, "localhost") as scripted:
            client = await clients.connect(scripted.url, tls=given)
            assert client.connected

    async def test_it_is_not(self, clients: Clients) -> None:
        """Neither without it, nor another's, nor for another name; each for good."""
        authority = trustme.CA()
        trusted = {"ca": authority.cert_pem.bytes()}
        for name, tls in (
            ("localhost", None),
            ("localhost", {"ca": trustme.CA().cert_pem.bytes()}),
            ("broker.test", trusted),
        ):
            async with guarded(authority, name) as scripted:
                client = clients.make(scripted.url, tls=tls, initial_connect="wait")
                with pytest.raises(ConnectionError) as raised:
                    await client.connect()
                assert (raised.value.code, raised.value.fatal) == ("tls", True)
                assert scripted.attempts == 0

    async def test_text_that_is_no_certificate(self, clients: Clients) -> None:
        """It is reported when it is given."""
        with pytest.raises(ConfigError, match="certificate"):
            await clients.connect("wss://localhost:9/ws", tls={"ca": "no certificate"})


class Forward:
    """A proxy that notes what it was asked for, and leads there."""

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one CONNECT with a 407, which is enough to be noticed by."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b"\r\n")[0].decode())
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.mark.parametrize("way", ["option", "environment", "switched off", "excepted"])
async def test_proxies(
    broker: Broker, clients: Clients, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """From the option or the environment, and around it (FC-25)."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    proxy = Forward()
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options: dict[str, Any] = {}
        if way == "option":
            options["proxy"] = url
        else:
            monkeypatch.setenv("HTTP_PROXY", url)
        if way == "switched off":
            options["proxy"] = False
        elif way == "excepted":
            monkeypatch.setenv("NO_PROXY", "localhost, 127.0.0.1 ,.corp.test")
        client = clients.make(broker.url, **options)
        if way in ("option", "environment"):
            with pytest.raises(ConnectionError, match="407"):
                await client.connect()
            assert proxy.asked == [f"CONNECT 127.0.0.1:{broker.port} HTTP/1.1"]
        else:
            await client.connect()
            assert proxy.asked == []


async def test_headers(clients: Clients, scripted: ScriptedBroker) -> None:
    """They are sent with the request for the WebSocket."""
    await clients.connect(scripted.url, headers={"X-Tenant": "dock", "User-Agent": "crane/1"})
    assert scripted.headers is not None
    assert scripted.headers["X-Tenant"] == "dock"
    assert scripted.headers["User-Agent"] == "crane/1"


@pytest.mark.parametrize("headers", [{"X Tenant": "dock"}, {"X-Tenant": "a\r\nb"}, "X: y"], ids=str)
async def test_headers_that_cannot_be(clients: Clients, headers: Any) -> None:
    """They are refused before anything is sent."""
    with pytest.raises(ConfigError):
        await clients.connect("ws://127.0.0.1:9/ws", headers=headers)
