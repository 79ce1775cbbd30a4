"""A broker for each test, and clients that do not outlive it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kit.broker import PROGRAM, Broker, Connect
from nolag import NoLag, NoLagOptions


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Run a broker with its demo tokens for the time of one test."""
    if not PROGRAM.exists():
        pytest.fail(f"{PROGRAM} is missing: cargo build -p nolag-broker")
    broker = Broker(tmp_path)
    yield broker
    broker.kill()


@pytest_asyncio.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    """Connect clients by name; they are disconnected in the end."""
    clients: list[NoLag] = []

    async def connect(name: str, **options: Any) -> NoLag:
        client = NoLag(f"dev-token-{name}", NoLagOptions(url=broker.url, **options))
        clients.append(client)
        await client.connect()
        return client

    yield connect
    for client in clients:
        client.disconnect()
