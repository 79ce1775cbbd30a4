"""The section on connection events of the published README, with a broker of ours."""

import asyncio
import os

from nolag import ConnectionStatus, NoLag, NoLagOptions


async def main() -> None:
    """Listen for events by the names that the README has."""
    client = NoLag("dev-token-alice", NoLagOptions(url=os.environ["URL"]))
    said: list[str] = []
    client.on("connected", lambda: said.append("Connected!"))
    client.on("disconnected", lambda: said.append("Disconnected"))
    client.on("reconnecting", lambda attempt: said.append(f"Reconnecting... attempt {attempt}"))
    client.on("error", lambda err: said.append(f"Error: {err}"))

    await client.connect()
    if client.status == ConnectionStatus.CONNECTED:
        said.append("We're connected!")
    await client.set_presence({"status": "online", "typing": False}, "general")
    await client.disconnect()
    assert said == ["Connected!", "We're connected!", "Disconnected"], said
    print("as promised")


asyncio.run(main())
