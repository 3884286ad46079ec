"""How fast a model comes from S3, beside a plain download: `python -m benchmarks.remote [--gigabytes N] [--rounds N]`.

The server answers what a repository needs of S3's protocol (a list, objects whole and in parts, with their ETags) and
sends files by sendfile, so that it is quicker than who asks; moto's reads a whole object for every part of it.
The plain download is the same client library's: one GET, written into a file as it comes and synced to the disk.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import obstore
import typer
from aiohttp import web
from obstore.store import S3Store

from conch.server.repository.remote.mirror import open_mirror

CONFIG = 'backend: "identity"'
WEIGHTS = "models/big/1/weights.bin"
REACH = 0.8


def bench(
    gigabytes: Annotated[float, typer.Option(help="Size of the model.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with both ways.")] = 3,
) -> None:
    """Fetch one model both ways in turns and print the rates. The exit status is 1 if the goal is missed."""
    size = int(gigabytes * 1e9)
    os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "NO_PROXY": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as directory:
        bucket = Path(directory, "bucket")
        write_model(bucket, size)
        here, there = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(bucket, there), daemon=True)
        server.start()
        try:
            ratios = list(compare(f"127.0.0.1:{here.recv()}", Path(directory), size, rounds))
        finally:
            server.terminate()
            server.join()
    ratio = statistics.median(ratios)
    print(f"conch ÷ plain download: {ratio:.2f}, to reach: {REACH}")
    if ratio < REACH:
        raise typer.Exit(1)


def compare(host: str, directory: Path, size: int, rounds: int) -> "list[float]":
    """Return how many times as fast as the plain download Conch was in each round."""
    ratios = []
    for number in range(rounds):
        seconds = {}
        for name, fetch in (("plain", plain), ("conch", conch)):
            os.sync()
            with tempfile.TemporaryDirectory(dir=directory) as target:
                begin = time.perf_counter()
                fetch(host, Path(target))
                seconds[name] = time.perf_counter() - begin
        rates = ", ".join(f"{name} {size / 1e6 / took:,.0f} MB/s" for name, took in seconds.items())
        print(f"round {number + 1}: {rates}", flush=True)
        ratios.append(seconds["plain"] / seconds["conch"])
    return ratios


def plain(host: str, target: Path) -> None:
    """Download the one large object."""
    store = S3Store("bucket", endpoint=f"http://{host}", client_options={"allow_http": True, "timeout": "1h"})
    with (target / "weights").open("wb") as stream:
        for chunk in obstore.get(store, WEIGHTS).stream():
            stream.write(chunk)
        os.fsync(stream.fileno())


def conch(host: str, target: Path) -> None:
    """Fetch the model as a server does that loads it."""
    place = open_mirror(f"s3://{host}/bucket/models", str(target)).find("big")
    assert place is not None


def write_model(bucket: Path, size: int) -> None:
    """Write a model of the size."""
    weights = bucket / WEIGHTS
    weights.parent.mkdir(parents=True)
    (weights.parents[1] / "config.pbtxt").write_text(CONFIG)
    block = os.urandom(1_000_000)
    with weights.open("wb") as stream:
        for _ in range(size // len(block)):
            stream.write(block)


def serve(bucket: Path, port: Connection) -> None:
    """Serve the files of a folder as a bucket, until the process ends. Tells the port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        key = request.path.removeprefix("/bucket").strip("/")
        if key:
            return web.FileResponse(bucket / key)
        return web.Response(text=listing(bucket, request.query.get("prefix", "")), content_type="application/xml")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


def listing(bucket: Path, prefix: str) -> str:
    """Return what ListObjectsV2 answers."""
    rows = []
    for path in sorted(bucket.rglob("*")):
        key, status = path.relative_to(bucket).as_posix(), path.stat()
        if path.is_file() and key.startswith(prefix):
            etag = f"{status.st_mtime_ns:x}-{status.st_size:x}"  # as aiohttp makes them
            rows.append(
                f"<Contents><Key>{key}</Key><Size>{status.st_size}</Size><ETag>&quot;{etag}&quot;</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"


if __name__ == "__main__":
    typer.run(bench)
