"""Files that hold no forest: each ends in an error that says so, whatever treelite would make of it."""

import json
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import treelite

from conch.base.errors import ModelLoadError
from conch.server.backends.fil.forest import ReadLimits, read_forest
from conch.server.backends.fil.forest_files import FILENAMES, check_form
from tests.server.backends.driving import complete
from tests.server.backends.fil.test_fil import parameter, train, write

KINDS = list(FILENAMES)


def stump(*, trees: int = 1, left: int = 1) -> bytes:
    """A model in XGBoost's old form, which its releases do not write any more: a tree of one question."""
    model = struct.pack("<fIiii", 0.5, 5, 0, 0, 0).ljust(136, b"\0")
    names = b"".join(struct.pack("<Q", len(name)) + name for name in (b"reg:squarederror", b"gbtree"))
    forest = struct.pack("<iiiiqii", trees, 1, 5, 0, 0, 1, 0).ljust(160, b"\0")
    tree = struct.pack("<iiiiii", 1, 3, 0, 1, 5, 0).ljust(148, b"\0")
    none = 0xFFFFFFFF
    nodes = struct.pack("<IiiIf", none, left, 2, 0, 0.25)
    nodes += struct.pack("<IiiIf", 1 << 31, -1, -1, 0, -1.0) + struct.pack("<IiiIf", 0, -1, -1, 0, 1.0)
    return b"binf" + model + names + forest + tree + nodes + bytes(3 * 16) + struct.pack("<i", 0)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A sound file of each kind."""
    folder = tmp_path_factory.mktemp("forests")
    booster, _ = train("xgboost", "two")
    booster.save_model(folder / "xgboost.json")
    booster.save_model(folder / "xgboost.ubj")
    train("lightgbm", "two")[0].save_model(folder / "model.txt")
    treelite.frontend.from_xgboost(booster).serialize(folder / "checkpoint.tl")
    (folder / "xgboost.model").write_bytes(stump())
    return {kind: (folder / name).read_bytes() for kind, name in FILENAMES.items()}


def put(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "forest"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_sound_files_are_read(sound: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, sound[kind])
    forest = read_forest(path, kind)
    assert (forest.trees, forest.features, forest.classes) == (1 if kind == "xgboost" else 12, 5, 1)
    if kind == "xgboost":
        np.testing.assert_allclose(forest.scores(np.array([[0.0] * 5, [1.0] * 5], np.float32), 1)[:, 0], [-0.5, 1.5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_file_of_another_form_is_named(sound: dict[str, bytes], tmp_path: Path, kind: str, other: str) -> None:
    path = put(tmp_path, sound[other])
    if kind == other:
        check_form(path, kind)  # raises nothing
        return
    with pytest.raises(ValueError, match=f"the file has the format of model_type '{other}'"):
        check_form(path, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"\xde\xad\xbe\xef" * 100, b"hello world\n" * 50, b"\xff" * 5000])
async def test_garbage_ends_the_load(tmp_path: Path, kind: str, content: bytes) -> None:
    text = parameter("model_type", kind)
    directory = write(tmp_path / "m", lambda path: path.write_bytes(content), FILENAMES[kind], text)
    with pytest.raises(ModelLoadError, match=rf"^treelite error: .+ \('.*/m/1/.*', read as {kind}, for model instance"):
        await complete(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_beginning_before_garbage_is_not_enough(sound: dict[str, bytes], tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, sound[kind][:150] + b"\xa5" * 3000)
    with pytest.raises(ValueError, match=r"."):
        read_forest(path, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tenth", [3, 9])
def test_a_file_that_was_cut_short_is_refused(sound: dict[str, bytes], tmp_path: Path, kind: str, tenth: int) -> None:
    content = sound[kind]
    end = content.index(b"end of trees") if kind == "lightgbm" else len(content)
    path = put(tmp_path, content[: end * tenth // 10])
    with pytest.raises(ValueError, match=r"truncated" if kind == "lightgbm" else r"."):
        read_forest(path, kind)


def bent_json(content: bytes, *, target: int | None = None) -> bytes:
    """Let the root's left child lead to another node: the root's right child where none is named."""
    document = json.loads(content)
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    child = tree["left_children"][0]
    tree["left_children"][child] = tree["right_children"][0] if target is None else target
    return json.dumps(document).encode()


def looped_text(content: bytes) -> bytes:
    return re.sub(rb"left_child=\S+", b"left_child=0", content, count=1)


@pytest.mark.parametrize(
    ("kind", "damage", "said"),
    [
        (
            "xgboost_json",
            partial(bent_json, target=0),
            "tree 0 has an invalid child: its root, or a node that does not",
        ),
        ("xgboost_json", bent_json, "tree 0 has a node with two parents"),
        ("xgboost", lambda _: stump(left=2), "must be unique"),
        ("xgboost", lambda _: stump(trees=2_000_000_000), "can't read"),
        ("xgboost", lambda _: b"hello world\n" * 50, "reading it requires too much memory; the file may be damaged"),
        ("lightgbm", looped_text, "the file may be damaged"),
        (
            "lightgbm",
            lambda text: re.sub(rb"num_leaves=\d+", b"num_leaves=2000000000", text, count=1),
            "the file may be damaged",
        ),
    ],
    ids=["loop", "shared", "shared in binary", "trees", "sizes", "loop in text", "leaves"],
)
def test_a_damaged_tree_ends_within_its_limits(
    sound: dict[str, bytes], tmp_path: Path, kind: str, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = put(tmp_path, damage(sound[kind]))
    with pytest.raises(ValueError, match=said):
        read_forest(path, kind, limits=ReadLimits(seconds=1))
