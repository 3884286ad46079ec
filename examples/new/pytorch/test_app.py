import app
import pytest

import conch


@pytest.fixture(scope="module")
def client():
    with conch.TestClient(app) as client:
        yield client


def test_probabilities_add_up_to_one(client):
    assert sum(client.generate({"x": [5.1, 3.5, 1.4, 0.2]})["output"]) == pytest.approx(1)


def test_several_rows_are_one_batch(client):
    rows = client.generate({"x": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.1, 4.7, 1.5]]})["output"]
    assert [len(row) for row in rows] == [3, 3]
