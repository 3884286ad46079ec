import pytest
from client import answer

from server import MODELS, serving

VERSION = MODELS / "my_model" / "1"


@pytest.fixture(scope="module")
def url():
    if not any(path.suffix in (".gguf", ".xml") for path in VERSION.iterdir()):
        pytest.skip(f"needs weights: copy a GGUF file into {VERSION}, as README.md describes")
    with serving() as url:
        yield url


def test_it_answers_in_parts(url):
    assert "".join(answer(url, "Hello")).strip()


def test_the_same_prompt_has_the_same_answer(url):
    assert list(answer(url, "Hello")) == list(answer(url, "Hello"))
