import app
import pytest

import conch


@pytest.fixture(scope="module")
def client():
    with conch.TestClient(app) as client:
        yield client


def test_an_iris_setosa(client):
    prediction = client.generate({"features": [5.1, 3.5, 1.4, 0.2]})
    assert prediction["label"] == 0
    assert sum(prediction["probabilities"]) == pytest.approx(1)


def test_several_rows_are_one_batch(client):
    assert client.generate({"features": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.1, 5.6, 2.4]]})["label"] == [0, 2]
