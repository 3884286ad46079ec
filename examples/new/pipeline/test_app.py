import base64
import io

import app
import pytest
from PIL import Image

import conch


def image(colour: str) -> str:
    """A PNG file in base64, as JSON carries it."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def client():
    with conch.TestClient(app) as client:
        yield client


def test_the_colour_of_an_image(client):
    assert client.generate({"image": image("blue")}) == {"colour": "blue", "share": 1.0}


def test_several_images_are_one_batch(client):
    assert client.generate({"image": [image("red"), image("lime")]})["colour"] == ["red", "green"]


def test_a_file_that_is_not_an_image(client):
    with pytest.raises(Exception, match="neither an image file nor"):
        client.generate({"image": "hello"})
