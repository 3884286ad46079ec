import pytest
from client import infer

from server import serving


@pytest.fixture(scope="module")
def url():
    with serving() as url:
        yield url


def test_each_row_has_an_output(url):
    assert infer(url, [[1, 0, 0, 0], [0, 0, 0, 1]]) == [[1, 0, 0], [1, 1, 1]]
