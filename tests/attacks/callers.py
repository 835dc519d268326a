"""Calls of a program that has a certificate of the federation, and does not behave like a device."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fairbloom.deploy.fleet.messages import SERVICE
from fairbloom.deploy.fleet.wire_pb2 import Working

# Seconds after which a call that has ended is repeated.
AGAIN_SECONDS = 5.0


async def say_nothing() -> AsyncIterator[bytes]:
    await asyncio.sleep(3600)
    yield b""


def call(channel: Any, kind: str) -> Any:
    if kind == "silent":
        return channel.stream_unary(f"/{SERVICE}/Reply")(say_nothing())
    return channel.unary_unary(f"/{SERVICE}/Beat")(Working(session=b"1" * 16).SerializeToString())


async def attack(channel: Any, kind: str, pause: float, calls: int = 1) -> None:
    async def repeat() -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(channel, kind)
            await asyncio.sleep(pause)

    await asyncio.gather(*(repeat() for _ in range(calls)))


async def main(number: str, port: str, bundle: str, kind: str) -> None:
    """Call on this number of connections, again and again, until the standard input ends.

    A call is silent, or a sign of life; those of one connection are repeated without a pause.
    """
    parts = [Path(bundle, name).read_bytes() for name in ("ca.crt", "key", "certificate")]
    credentials = grpc.ssl_channel_credentials(*parts)
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"localhost:{port}"
    if kind == "parallel":
        channels = [grpc.aio.secure_channel(address, credentials, options)]
        tasks = [asyncio.create_task(attack(channels[0], "beat", 0.0, int(number)))]
    else:
        channels = [
            grpc.aio.secure_channel(address, credentials, options) for _ in range(int(number))
        ]
        tasks = [asyncio.create_task(attack(each, kind, AGAIN_SECONDS)) for each in channels]
    await asyncio.sleep(5.0)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
