"""Configurations as JSON values."""

import json
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigMessage

from conch.base.errors import ConfigError
from conch.domain.config.document import from_document, parse_json, to_document
from conch.domain.config.pbtxt import parse_pbtxt


def test_all_scalar_defaults_are_shown_and_unset_messages_are_not() -> None:
    assert to_document(ConfigMessage()) == {
        "name": "",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def test_fields_come_in_the_order_of_their_declaration() -> None:
    message = parse_pbtxt('max_batch_size: 2 backend: "x" name: "m" dynamic_batching {} optimization {}', "f")
    keys = list(to_document(message))
    declared = [field.name for field in ConfigMessage.DESCRIPTOR.fields]
    assert keys == [name for name in declared if name in keys]


def test_64_bit_integers_are_numbers_wherever_they_are() -> None:
    message = parse_pbtxt(
        """
        input { name: "a" dims: [ -1, 3 ] reshape { shape: [ 3 ] } }
        version_policy { specific { versions: [ 1, 9223372036854775807 ] } }
        dynamic_batching {
          max_queue_delay_microseconds: 18446744073709551615
          default_queue_policy { default_timeout_microseconds: 7 }
          priority_queue_policy { key: 2 value { default_timeout_microseconds: 8 } }
        }
        model_warmup { inputs { key: "a" value { dims: [ 5 ] } } }
        """,
        "f",
    )
    document = to_document(message)
    assert document["input"][0]["dims"] == [-1, 3]
    assert document["input"][0]["reshape"] == {"shape": [3]}
    assert document["version_policy"] == {"specific": {"versions": [1, 2**63 - 1]}}
    batching = document["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 2**64 - 1
    assert batching["default_queue_policy"]["default_timeout_microseconds"] == 7
    assert batching["priority_queue_policy"]["2"]["default_timeout_microseconds"] == 8
    assert document["model_warmup"][0]["inputs"]["a"]["dims"] == [5]


def test_ensemble_maps_and_versions() -> None:
    message = parse_pbtxt(
        'ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "a" value: "b" } } }', "f"
    )
    (step,) = to_document(message)["ensemble_scheduling"]["step"]
    assert step["model_version"] == -1
    assert step["input_map"] == {"a": "b"}


def test_protobuf_takes_the_document_back() -> None:
    message = parse_pbtxt('name: "m" input { name: "a" dims: 3 data_type: TYPE_FP32 } instance_group { gpus: 0 }', "f")
    document = json.loads(json.dumps(to_document(message)))
    assert ParseDict(document, ConfigMessage()) == message
    assert from_document(document, "f") == message


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"foo_bar_baz": 1}, "here: unknown field 'foo_bar_baz' in ModelConfig; known fields: name,"),
        ({"max_batchsize": 1}, "here: unknown field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'?"),
        ({"input": [{"foo": 1}]}, "here: ModelConfig.input[0]: unknown field 'foo' in ModelInput"),
        (
            {"input": [{"data_type": "TYPE_FLOAT"}]},
            "here: ModelConfig.input[0].data_type: unknown value TYPE_FLOAT of DataType; did you mean TYPE_FP32?",
        ),
        ({"input": [{"name": 3}]}, "here: input[0].name: expected a string, got 3"),
        ({"input": {"name": "a"}}, "here: input: expected a list, got an object"),
        ({"input": 3}, "here: input: expected a list, got 3"),
        ({"input": [3]}, "here: input[0]: expected an object, got 3"),
        ({"max_batch_size": "x"}, "here: max_batch_size: expected an integer, got 'x'"),
        ({"max_batch_size": 1.5}, "here: max_batch_size: expected an integer, got 1.5"),
        (
            {"max_batch_size": 2**40},
            "here: max_batch_size: expected an integer from -2147483648 to 2147483647, got 1099",
        ),
        ({"max_batch_size": [1]}, "here: max_batch_size: expected an integer, got a list"),
        ({"parameters": []}, "here: parameters: expected an object, got a list"),
        ({"parameters": {"a": "b"}}, "here: parameters['a']: expected an object, got 'b'"),
        ({"dynamic_batching": {}, "sequence_batching": {}}, "scheduling_choice"),
        ({"model_transaction_policy": {"decoupled": "yes"}}, "decoupled: expected true or false, got 'yes'"),
        ({"name": "a\ud800"}, "here: name: expected a string, got 'a\\ud800'"),
        ({3: 4}, "here: the fields do not fit ModelConfig"),
    ],
)
def test_mistakes_are_explained(document: dict[Any, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_document(document, "here")
    assert said in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "here: not valid JSON: Expecting value: line 1 column 1"),
        ('{"name": "a",}', "here: not valid JSON: "),
        ("[1]", "here: expected a JSON object with the fields of ModelConfig, got a list"),
        ("null", "got null"),
        ("[" * 100_000, "here: not valid JSON: "),
        ('{"name": "\\ud800"}', r"here: not valid JSON: a string has half of a surrogate pair, \ud800"),
        ('{"\\udfff": 1}', r"here: not valid JSON: a string has half of a surrogate pair, \udfff"),
        ('{"max_batch_size": ' + "1" * 5000 + "}", "here: not valid JSON: an integer of 5000 digits"),
        ('{"input": [["a"]]}', "here: input[0]: expected an object, got a list"),
        ('{"input": [{"data_type": []}]}', "here: input[0].data_type: expected the name of a value, got a list"),
        ('{"input": [{"data_type": 1e400}]}', "here: input[0].data_type: expected the name of a value, got Infinity"),
        ('{"max_batch_size": true}', "here: max_batch_size: expected an integer, got true"),
        ('{"parameters": null, "input": null, "maxBatchSize": null, "name": false}', "here: name: expected a string"),
        ('{"input": ' + "[" * 500 + "]" * 500 + "}", "here: "),
    ],
)
def test_json_that_is_not_a_configuration(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_json(text, "here")
    assert raised.value.message.startswith(said) or said in raised.value.message


def test_json_in_either_spelling_of_names() -> None:
    assert parse_json('{"maxBatchSize": 3}', "f") == parse_json('{"max_batch_size": 3}', "f")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([field.name for field in ConfigMessage.DESCRIPTOR.fields]), _json, max_size=3))
def test_any_values_are_read_or_explained(document: dict[str, Any]) -> None:
    try:
        message = from_document(document, "here")
    except ConfigError as error:
        said = error.message
    else:
        said = "here: read"
        assert from_document(to_document(message), "again") == message
    assert said.startswith("here: ")
