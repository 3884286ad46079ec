from pathlib import Path

import pytest

from conch.domain.config.document import from_document, to_document
from conch.domain.config.pbtxt import parse_pbtxt
from conch.measure.tune.knobs import with_settings
from conch.measure.tune.pbtxt_edit import edit_pbtxt
from conch.measure.tune.space import Value

EXAMPLES = Path(__file__).parents[4] / "examples" / "models"
# An ensemble has no knobs.
_WITH_KNOBS = sorted(folder for folder in EXAMPLES.iterdir() if "ensemble" not in (folder / "config.pbtxt").read_text())

TEXT = """\
# A detector.
name: "detector"  # as clients know it
backend: "onnxruntime"
max_batch_size: 8  # more does not fit
instance_group [
  { count: 1, kind: KIND_CPU }  # one
]
dynamic_batching {
  max_queue_delay_microseconds: 100  # a little
}
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }  # threads
"""


def _edited(text: str, settings: dict[str, Value], backend: str = "") -> str:
    return edit_pbtxt(text, lambda document: with_settings(document, settings), "config.pbtxt", backend)


def test_numbers_are_replaced_in_their_places() -> None:
    settings: dict[str, Value] = {"instances": 4, "threads": 2, "max_batch_size": 16, "queue_delay_us": 500}
    expected = (
        TEXT.replace("count: 1", "count: 4")
        .replace('"1"', '"2"')
        .replace("size: 8", "size: 16")
        .replace(": 100", ": 500")
    )
    assert _edited(TEXT, settings) == expected


def test_a_removed_field_takes_its_lines_with_it() -> None:
    text = _edited(TEXT, {"queue_delay_us": "off", "threads": 0})
    assert text == TEXT[: TEXT.index("dynamic_batching")]


def test_missing_fields_are_appended() -> None:
    text = _edited('name: "m"', {"instances": 2, "threads": 2}, "openvino")
    assert text.startswith('name: "m"\n')
    document = to_document(parse_pbtxt(text, "x"))
    assert document["instance_group"][0]["count"] == 2
    assert document["parameters"] == {"INFERENCE_NUM_THREADS": {"string_value": "2"}}
    assert not document.get("backend")


def test_nothing_to_change_leaves_the_text() -> None:
    assert _edited(TEXT, {"instances": 1, "max_batch_size": 8}) == TEXT


@pytest.mark.parametrize("folder", _WITH_KNOBS, ids=lambda path: str(path.name))
def test_every_example_gets_the_settings_and_keeps_its_comments(folder: Path) -> None:
    text = (folder / "config.pbtxt").read_text()
    settings: dict[str, Value] = {"instances": 3, "queue_delay_us": 250, "max_batch_size": 4}
    edited = _edited(text, settings)
    changed = with_settings(to_document(parse_pbtxt(text, "x")), settings)
    expected = to_document(from_document(changed, "x"))
    assert to_document(parse_pbtxt(edited, "x")) == expected
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line and "batching" not in line]
    assert all(comment in edited for comment in comments)
