from collections.abc import Iterator

import pytest

from tests.server.robustness.slow_clients import write_models
from tests.support.server_process import ConchProcess


@pytest.fixture(scope="package")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    """One server for all rude clients: what one of them leaves behind, the next one finds."""
    root = tmp_path_factory.mktemp("rude")
    write_models(root / "models")
    with ConchProcess(root / "models", log=root / "conch.log") as server:
        yield server
