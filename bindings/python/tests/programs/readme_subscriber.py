"""The quick start and the sections on topics of the published README, with a broker of ours."""

import asyncio
import os

from nolag import EmitOptions, NoLag, NoLagOptions, QoS, SubscribeOptions

TOPIC = "demo/general/messages"


async def main() -> None:
    """Subscribe with a handler in the second place, and await `disconnect`."""
    options = NoLagOptions(
        url=os.environ["URL"],
        reconnect=True,
        reconnect_interval=5.0,
        max_reconnect_attempts=10,
        heartbeat_interval=30.0,
        qos=QoS.AT_LEAST_ONCE,
    )
    client = NoLag("dev-token-alice", options)
    await client.connect()

    received: asyncio.Queue[object] = asyncio.Queue()

    def on_message(data: object, _meta: object) -> None:
        received.put_nowait(data)

    await client.subscribe(TOPIC, on_message)
    await client.emit(TOPIC, {"hello": "world"})
    assert await received.get() == {"hello": "world"}

    tasks = SubscribeOptions(
        qos=QoS.EXACTLY_ONCE, load_balance=True, load_balance_group="task-workers"
    )
    await client.subscribe("demo/general/tasks", on_message, tasks)
    await client.emit("demo/general/tasks", 1, EmitOptions(qos=QoS.AT_MOST_ONCE))
    assert await received.get() == 1

    await client.unsubscribe(TOPIC)
    await client.emit("demo/general/status", {"online": True}, EmitOptions(retain=True))
    await client.disconnect()
    print("as promised")


asyncio.run(main())
