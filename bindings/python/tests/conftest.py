"""A broker for each test, real or scripted, and clients that do not outlive it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kit.broker import PROGRAM, Broker, Connect
from kit.clients import Clients
from kit.scripted import ScriptedBroker


def pytest_configure(config: pytest.Config) -> None:
    """Fail for what no test looks at: a destructor's exception, a coroutine that nobody awaited."""
    config.addinivalue_line("filterwarnings", "error")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Run a broker with its demo tokens for the time of one test."""
    if not PROGRAM.exists():
        pytest.fail(f"{PROGRAM} is missing: cargo build -p nolag-broker")
    broker = Broker(tmp_path)
    yield broker
    broker.kill()


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[Clients]:
    """Make clients of one's own; they are disconnected in the end."""
    clients = Clients()
    yield clients
    clients.disconnect()


@pytest_asyncio.fixture
async def connect(broker: Broker, clients: Clients) -> Connect:
    """Connect clients to the broker by name."""

    async def connect(name: str, **options: Any) -> Any:
        return await clients.connect(broker.url, name, **options)

    return connect


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    """Run an endpoint that a test scripts."""
    async with ScriptedBroker() as scripted:
        yield scripted
