"""bob subscribes once, and hears alice through any number of broker restarts.

Needs a broker with its demo tokens (README.md). Kill it while this runs, and start it again; Ctrl-C
ends this.
"""

import asyncio
import contextlib
import itertools
import os

from nolag import NoLag, NoLagOptions

URL = os.environ.get("NOLAG_URL", "ws://localhost:8080/ws")
TOPIC = "demo/general/messages"


async def main() -> None:
    options = NoLagOptions(url=URL)
    async with NoLag("dev-token-alice", options) as alice, NoLag("dev-token-bob", options) as bob:
        bob.on(TOPIC, lambda data, meta: print("bob got:", data))
        bob.on("disconnect", lambda reason: print("bob lost the broker:", reason))
        bob.on("reconnect", lambda: print("bob is back"))
        await bob.subscribe(TOPIC)

        for number in itertools.count(1):
            await alice.emit(TOPIC, number)
            await asyncio.sleep(1)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
