"""Ensembles of models with and without batches: Triton 2.51 loads all of these and gives these responses."""

import http.client
import json
from collections.abc import Iterator

import pytest

from tests.support.models import tensor, write_ensemble, write_identity
from tests.support.server_process import ConchProcess

MODELS = {
    # name: dims, max_batch_size
    "batched": ((4,), 4),
    "single": ((4,), 0),
    "rows": ((-1, 4), 0),
}
ENSEMBLES = {
    # name: dims, max_batch_size, steps
    "batched_single": ((4,), 4, ("batched", "single")),
    "single_batched": ((4,), 4, ("single", "batched")),
    "rows_batched": ((4,), 4, ("rows", "batched")),
    "plain_batched": ((4,), 0, ("batched",)),
    "plain_batched_single": ((4,), 0, ("batched", "single")),
    "plain_rows_batched": ((-1, 4), 0, ("rows", "batched")),
    "plain_single_batched": ((4,), 0, ("single", "batched")),
}
REFUSED = None
ANSWERS: list[tuple[str, list[int], list[int] | None]] = [
    # ensemble, shape of the request, shape of the response
    ("batched_single", [1, 4], [1, 4]),
    ("batched_single", [2, 4], REFUSED),
    ("single_batched", [1, 4], [1, 4]),
    ("single_batched", [2, 4], REFUSED),
    ("rows_batched", [1, 4], [1, 4]),
    ("rows_batched", [3, 4], [3, 4]),
    ("plain_batched", [4], [4]),
    ("plain_batched_single", [4], [4]),
    ("plain_rows_batched", [3, 4], [3, 4]),
    ("plain_rows_batched", [5, 4], REFUSED),
    ("plain_single_batched", [4], [4]),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("ensembles")
    for name, (dims, batch) in MODELS.items():
        write_identity(root / "models", name, "FP32", *dims, batch=batch)
    for name, (dims, batch, steps) in ENSEMBLES.items():
        tensors = ["INPUT0", *(f"middle{number}" for number in range(1, len(steps))), "OUTPUT0"]
        write_ensemble(
            root / "models",
            name,
            f"max_batch_size: {batch} input {tensor('INPUT0', 'FP32', *dims)}",
            f"output {tensor('OUTPUT0', 'FP32', *dims)}",
            *(
                (model, {"INPUT0": source}, {"OUTPUT0": target})
                for model, source, target in zip(steps, tensors, tensors[1:], strict=False)
            ),
        )
    with ConchProcess(root / "models", log=root / "conch.log") as process:
        yield process


@pytest.mark.parametrize(("ensemble", "shape", "expected"), ANSWERS)
def test_shapes(server: ConchProcess, ensemble: str, shape: list[int], expected: list[int] | None) -> None:
    data = list(range(shape[0] * 4 if len(shape) == 2 else 4))
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": data}]}
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("POST", f"/v2/models/{ensemble}/infer", json.dumps(body))
    response = connection.getresponse()
    answer = json.load(response)
    connection.close()
    if expected is REFUSED:
        assert (response.status, answer["error"].startswith(f"in ensemble '{ensemble}', ")) == (400, True)
    else:
        output = answer["outputs"][0]
        assert (response.status, output["shape"], output["data"]) == (200, expected, data)


def test_steps_that_limit_the_batch_to_one_item_are_logged(server: ConchProcess) -> None:
    for name in ("batched_single", "single_batched"):
        assert f"ensemble '{name}': step {ENSEMBLES[name][2].index('single')}" in server.text
    assert "ensemble 'rows_batched': step" not in server.text
    assert "ensemble 'plain_batched': step" not in server.text
