"""Validation rules and values of `sequence_batching`."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.from_proto import to_model_config
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.unsupported import unsupported_notices
from conch.domain.config.validate import validate_configuration, validate_tensors
from conch.domain.model_config import ControlKind, SequenceControl, SequenceState

CONTROL = 'control_input {{ name: "S" control {{ {} }} }}'
START = CONTROL.format("kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]")
CORRID = 'control_input {{ name: "C" control {{ kind: CONTROL_SEQUENCE_CORRID {} }} }}'
STATE = 'state {{ input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: [ -1, 2 ] {} }}'
INITIAL = 'initial_state {{ name: "b" data_type: TYPE_FP32 dims: [ {} ] {} }}'


def config(text: str) -> str:
    return (
        'name: "m" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } '
        f"sequence_batching {{ {text} }}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "direct { minimum_slot_utilization: 1.0 max_queue_delay_microseconds: 5 }",
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 4, 8 ] }",
        START,
        CONTROL.format("kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ]"),
        CONTROL.format("kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ]"),
        *(
            CORRID.format(f"data_type: TYPE_{datatype}")
            for datatype in ("UINT64", "INT64", "UINT32", "INT32", "STRING")
        ),
        STATE.format(""),
        STATE.format(INITIAL.format("5, 2", "zero_data: true")),
        STATE.format(INITIAL.format("5, 2", 'data_file: "f"') + " use_same_buffer_for_input_output: true"),
        "iterative_sequence: true",
    ],
)
def test_valid_configurations(text: str) -> None:
    validate_configuration(parse_pbtxt(config(text), "f"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("control_input { }", "sequence batching control tensor must have a name for m"),
        (START + START, "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m"),
        (
            START + START.replace("START", "END"),
            "sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            CONTROL.format("kind: CONTROL_SEQUENCE_START"),
            (
                "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
                "CONTROL_SEQUENCE_START for m: control_input 'S'"
            ),
        ),
        (
            CONTROL.format("kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
            (
                "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
                "'bool_false_true' for CONTROL_SEQUENCE_START"
            ),
        ),
        (
            CONTROL.format("kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1, 2 ]"),
            "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY",
        ),
        (CORRID.format(""), "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are"),
        (
            CORRID.format("data_type: TYPE_FP32"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed",
        ),
        (
            CORRID.format("data_type: TYPE_INT32 int32_false_true: [ 0, 1 ]"),
            (
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
                "'bool_false_true' for CONTROL_SEQUENCE_CORRID"
            ),
        ),
        ("oldest { preferred_batch_size: 0 }", "sequence batching preferred batch size must be positive for m"),
        (
            "oldest { preferred_batch_size: 9 }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (
            "direct { minimum_slot_utilization: 1.5 }",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
        ('state { input_name: "i" }', "sequence batching state must specify 'output_name' for m"),
        (STATE.format("").replace("-1", "0"), "dims of state input 'i' for m must be integers >= 1, or -1"),
        (STATE.format("") * 2, "sequence batching control tensor 'i' is specified for multiple control kinds for m"),
        (
            STATE.format("") + STATE.format("").replace('"i"', '"j"'),
            "state output 'o' is specified more than once for m",
        ),
        (
            STATE.format("").replace('"i"', '"x"'),
            "'x' of m is both an input and a control or state of sequence_batching",
        ),
    ],
)
def test_each_broken_rule_is_named_with_its_field(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_configuration(parse_pbtxt(config(text), "f"))
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            STATE.format(INITIAL.format("5, 2", "zero_data: true") * 2),
            "initial_state field for state input 'i' must contain exactly one or zero element. Found '2' elements.",
        ),
        (
            STATE.format(INITIAL.format("5, 2", "zero_data: true").replace("FP32", "INT8")),
            "The data type used for 'initial_state' field of state 'i' does not match the state data type",
        ),
        (
            STATE.format(INITIAL.format("5, 2", "zero_data: true").replace('"b"', '""')),
            "Field 'name' must be set when using initial_state for state input 'i'",
        ),
        (
            STATE.format(INITIAL.format("5", "zero_data: true")),
            (
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
                "input 'i'. 1 != 2"
            ),
        ),
        (
            STATE.format(INITIAL.format("-1, 2", "zero_data: true")),
            "'initial_state' field for state input name 'i' contains variable dimensions",
        ),
        (
            STATE.format(INITIAL.format("1, 3", "zero_data: true")),
            "'initial_state' dim for input name 'i' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            STATE.format(INITIAL.format("1, 2", "")),
            "initial_state setting expects state'i' to have state_data set",
        ),
    ],
)
def test_initial_states_are_checked_when_the_model_is_loaded(text: str, said: str) -> None:
    """As in Triton: the client's request to load it is then at fault (400), not the repository (500)."""
    message = parse_pbtxt(config(text), "f")
    validate_configuration(message)
    with pytest.raises(ConfigError) as caught:
        validate_tensors(message)
    assert caught.value.message.startswith(said)


def test_controls_and_states_become_values() -> None:
    end = 'control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 2 ] } }'
    state = STATE.format(INITIAL.format("5, 2", 'data_file: "f"'))
    other = STATE.format("").replace('"i"', '"j"').replace('"o"', '"p"')
    text = f"{CORRID.format('data_type: TYPE_STRING')} {end} {START} {state} {other}"
    values = to_model_config(parse_pbtxt(config(text), "f")).sequence_batching
    assert values is not None
    assert not values.oldest
    assert values.controls == (
        SequenceControl(ControlKind.START, "S", "INT32", b"\0\0\0\0", b"\1\0\0\0"),
        SequenceControl(ControlKind.END, "E", "FP32", b"\0\0\0\0", b"\0\0\0@"),
        SequenceControl(ControlKind.CORRID, "C", "BYTES"),
    )
    assert values.states[0] == SequenceState("i", "o", "FP32", (-1, 2), (5, 2), "f")
    assert values.states[1].initial_dims == (1, 2)


def test_memory_settings_of_states_have_no_effect_and_a_notice() -> None:
    message = parse_pbtxt(config(STATE.format("use_same_buffer_for_input_output: true")), "f")
    assert any("use_same_buffer_for_input_output of the state 'i'" in notice for notice in unsupported_notices(message))
