"""config.pbtxt: parsing and error messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import ConfigError
from conch.domain.config.pbtxt import parse_pbtxt


def explanation(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_pbtxt(text, "m/config.pbtxt")
    return raised.value.message


def read_or_explained(text: str) -> bool:
    """Whether a text is either read or refused with its place; anything else that is raised gets out."""
    try:
        parse_pbtxt(text, "f")
    except ConfigError as error:
        return error.message.startswith("f:")
    return True


@pytest.mark.parametrize(
    "text",
    [
        'input [ { name: "a" dims: [ 3, 4 ] } ]',
        'input: [ { name: "a", dims: [ 3, 4 ] } ]',
        'input { name: "a" dims: 3 dims: 4 }',
        'input: { name: "a"; dims: 3; dims: 4; }',
        'input < name: "a" dims: [3,4] >',
        "# a comment: 模型\ninput [ # another\n { name: 'a' dims: [3, 4] } ]",
    ],
)
def test_forms_of_a_list(text: str) -> None:
    message = parse_pbtxt(text, "config.pbtxt")
    assert [(tensor.name, list(tensor.dims)) for tensor in message.input] == [("a", [3, 4])]


def test_empty_text_is_an_empty_configuration() -> None:
    assert parse_pbtxt("", "config.pbtxt").ByteSize() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "max_batchsize: 3",
            "m/config.pbtxt:1:1: unknown field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'?",
        ),
        (
            'name: "m"\nmax_queue_delay_microseconds: 3',
            ":2:1: unknown field 'max_queue_delay_microseconds' in ModelConfig; it is a field of 'dynamic_batching'",
        ),
        ("zzz: 1", "1:1: unknown field 'zzz' in ModelConfig; known fields: name, platform, backend,"),
        (
            'parameters { key: "a" value { int_value: 3 } }',
            "unknown field 'int_value' in ModelParameter; did you mean 'string_value'?",
        ),
        (
            "input { data_type: TYPE_FLOAT }",
            "1:20: unknown value TYPE_FLOAT of DataType; did you mean TYPE_FP32? Allowed: TYPE_INVALID,",
        ),
        ("input { data_type: FP32 }", "unknown value FP32 of DataType; did you mean TYPE_FP32?"),
        ("input { data_type: TYPE_FP23 }", "did you mean TYPE_FP32?"),
        (
            'input { data_type: "TYPE_FP32" }',
            'unknown value "TYPE_FP32" of DataType; write it without quotes: TYPE_FP32',
        ),
        ("instance_group { kind: GPU }", "did you mean KIND_GPU? Allowed: KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL"),
        ("instance_group { kind: zzzz }", "unknown value zzzz of ModelInstanceGroup.Kind; allowed: KIND_AUTO,"),
        ('max_batch_size: "8"', "1:17: expected an integer for 'max_batch_size', found \"8\""),
        ("max_batch_size: 1.5", "expected an integer for 'max_batch_size', found 1.5"),
        ("input { dims: [ x ] }", "expected an integer for 'a list element', found x"),
        ("max_batch_size: 99999999999", "99999999999 is out of range for 'max_batch_size'"),
        ("input { data_type: " + "1" * 400 + " }", "Value out of range: 111"),
        ('name: "\\355\\240\\200"', "the string before this place is not valid UTF-8"),
        ("backend: onnxruntime", "1:10: 'backend' is a string: write it in quotes, \"onnxruntime\""),
        ("model_transaction_policy { decoupled: yes }", "expected true or false for 'decoupled', found 'yes'"),
        ('name: "a" name: "b"', "'name' is given twice in ModelConfig"),
        (
            "dynamic_batching {} sequence_batching {}",
            "'sequence_batching' and 'dynamic_batching' are mutually exclusive",
        ),
        ("version_policy { latest {} all {} }", "'all' and 'latest' are mutually exclusive"),
        (
            'input [ { name: "a" }, ]',
            "expected another element after ',', found ']'; remove the comma after the last element",
        ),
        (
            'input [ { name: "a" } { name: "b" } ]',
            "expected ',' or ']', found '{'; the elements of a list are separated by commas",
        ),
        (
            "version_policy: latest",
            "expected '{' after 'version_policy', found 'latest'; it is a message: write `version_policy { … }`",
        ),
        ('parameters { key: "a" value: "b" }', 'expected \'{\', found "b"; write `value: { string_value: "…" }`'),
        ("input [ [", "expected '{', found '['"),
        ("max_batch_size 8", "expected ':' and a value after 'max_batch_size', found '8'"),
        ('input { name: "a" ', "expected '}', found the end of the text; a bracket is not closed"),
        ("input { name: 'a' ]", "expected the name of a field, found ']'"),
        ('{ name: "a" }', "expected the name of a field, found '{'"),
        ('name: "abc', "String missing ending quote"),
        (r'name: "\377"', "the string before this place is not valid UTF-8"),
    ],
)
def test_mistakes_are_explained(text: str, said: str) -> None:
    assert said in explanation(text)


def test_the_list_form_of_dynamic_batching_is_explained() -> None:
    text = 'name: "detector"\nmax_batch_size: 8\ndynamic_batching [\n  { preferred_batch_size: [ 4, 8 ] }\n]\n'
    said = explanation(text)
    assert said.startswith("m/config.pbtxt:3:18: 'dynamic_batching' is one message, not a list")
    assert "write `dynamic_batching { … }`" in said


@given(st.text(alphabet=st.sampled_from("{}[]<>:,;#\"'\\ \nxinputdims_bach-0123456789.é\x00"), max_size=60))
def test_every_parser_error_is_explained(text: str) -> None:
    assert read_or_explained(text)


@given(st.data())
def test_a_damaged_configuration_is_an_explained_one_or_a_valid_one(data: st.DataObject) -> None:
    text = (
        'name: "m" max_batch_size: 8\ninput [ { name: "a" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]\n'
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }\n"
        'parameters { key: "k" value { string_value: "v" } }\n'
    )
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, len(text)))
    assert read_or_explained(text[:start] + text[end:])
