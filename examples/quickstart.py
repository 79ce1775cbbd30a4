"""alice says hello to bob: the quick start, with the published Python client.

Needs a broker with its demo tokens (README.md) and `pip install nolag`.
"""

import asyncio
import os

from nolag import NoLag, NoLagOptions

URL = os.environ.get("NOLAG_URL", "ws://localhost:8080/ws")
TOPIC = "demo/general/messages"


async def main() -> None:
    bob = NoLag("dev-token-bob", NoLagOptions(url=URL))
    bob.on(TOPIC, lambda data, meta: print("bob got:", data))
    await bob.connect()
    await bob.subscribe(TOPIC)

    alice = NoLag("dev-token-alice", NoLagOptions(url=URL))
    await alice.connect()
    await alice.emit(TOPIC, {"text": "hello from alice"})

    await asyncio.sleep(1)
    alice.disconnect()
    bob.disconnect()


asyncio.run(main())
