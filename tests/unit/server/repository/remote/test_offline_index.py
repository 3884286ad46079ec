"""The index of cached models."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.listing import RemoteFile
from conch.server.repository.remote.mirror import OfflineIndex


def test_concurrent_updates_are_all_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.open()
    index = OfflineIndex(cache, "s3://bucket")
    barrier = Barrier(8)

    def load(name: str) -> None:
        barrier.wait()
        index.update_model(name, [RemoteFile("1", "", 0)])

    names = [f"model-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(load, names))
    assert sorted(index.read().models) == names
