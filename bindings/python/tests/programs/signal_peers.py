"""Two peers of `nolag-signal` exchange an offer and an answer, also after a restart of the broker.

A guest, who is in the room without being a peer, shows that lobbies reach them.
"""

import asyncio
import os
from typing import Any

# After it, because that is whom `nolag-signal` patches.
from nolag import NoLag
from nolag_signal import NoLagSignal, NoLagSignalOptions

URL = os.environ["URL"]


async def peer(name: str) -> tuple[NoLagSignal, Any]:
    """Connect a peer, and join the room."""
    options = NoLagSignalOptions(metadata={"name": name}, app_name="demo", url=URL)
    signal = NoLagSignal(f"dev-token-{name}", options)
    await signal.connect()
    assert signal.connected
    assert signal.local_peer is not None
    assert signal.local_peer.actor_token_id == name
    return signal, await signal.join_room("general")


async def main() -> None:
    """Say what happens, line by line."""
    lines: asyncio.Queue[str] = asyncio.Queue()

    async def say_next() -> None:
        print(await asyncio.wait_for(lines.get(), 20), flush=True)

    guest = NoLag("dev-token-bob", url=URL)
    await guest.connect()
    await guest.set_presence({"peerId": "the guest"}, "general")
    await guest.fetch_presence("general")

    alice, alices_room = await peer("alice")
    bob, bobs_room = await peer("bob")
    # Known from the snapshot of the lobby.
    for online in alice.get_online_peers():
        lines.put_nowait(f"online: {online.peer_id}")
    alice.on("peer_offline", lambda gone: lines.put_nowait(f"offline: {gone.peer_id}"))
    alice.on("reconnected", lambda: lines.put_nowait("reconnected"))
    await say_next()

    def of(name: str) -> Any:
        return lambda message: lines.put_nowait(f"{message.type} for {name}: {message.payload}")

    alices_room.on("signal", of("alice"))
    bobs_room.on("signal", of("bob"))
    assert alice.local_peer is not None
    assert bob.local_peer is not None
    await alices_room.send_offer(bob.local_peer.peer_id, {"sdp": "offer"})
    await say_next()
    await bobs_room.send_answer(alice.local_peer.peer_id, {"sdp": "answer"})
    await say_next()
    await guest.close()
    await say_next()

    back = asyncio.Event()
    bob.on("reconnected", back.set)
    print("restart the broker", flush=True)
    await say_next()
    await asyncio.wait_for(back.wait(), 20)
    await alices_room.send_offer(bob.local_peer.peer_id, {"sdp": "again"})
    await say_next()
    alice.disconnect()
    bob.disconnect()
    # What it began in the background when it was disconnected.
    await asyncio.sleep(0.1)


asyncio.run(main())
