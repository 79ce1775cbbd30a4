"""Clients of a test."""

from typing import Any

from nolag import NoLag

from kit.scripted import Link, ScriptedBroker


class Clients:
    """Makes clients, and disconnects them when the test is over."""

    def __init__(self) -> None:
        """Begin with none."""
        self._clients: list[NoLag] = []

    def make(self, url: str | None, name: str = "alice", **options: Any) -> NoLag:
        """Make one that is quick to return, unless it is told otherwise."""
        options.setdefault("reconnect_interval", 0.05)
        client = NoLag(f"dev-token-{name}", url=url, **options)
        self._clients.append(client)
        return client

    async def connect(self, url: str, name: str = "alice", **options: Any) -> NoLag:
        """Make one, and connect it."""
        client = self.make(url, name, **options)
        await client.connect()
        return client

    async def link(self, scripted: ScriptedBroker, **options: Any) -> tuple[NoLag, Link]:
        """Connect one to a scripted broker; and the connection as that sees it."""
        client = await self.connect(scripted.url, **options)
        return client, await scripted.link()

    def disconnect(self) -> None:
        """Disconnect all of them."""
        for client in self._clients:
            client.disconnect()
