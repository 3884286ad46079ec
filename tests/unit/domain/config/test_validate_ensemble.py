"""Validation rules of an ensemble's graph."""

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.validate import validate_ensemble


def ensemble(*steps: str, inputs: str = "IN", outputs: str = "OUT", more: str = "") -> str:
    """A configuration; a step is written `model: IN x -> y OUT`."""
    written = []
    for step in steps:
        model, _, rest = step.partition(":")
        read, _, write = rest.partition("->")
        maps = [f'input_map {{ key: "i{n}" value: "{name}" }}' for n, name in enumerate(read.split())]
        maps += [f'output_map {{ key: "o{n}" value: "{name}" }}' for n, name in enumerate(write.split())]
        name = f'model_name: "{model}"' if model else ""
        written.append(f"step {{ {name} {' '.join(maps)} }}")
    tensors = [f'input {{ name: "{name}" }}' for name in inputs.split()]
    tensors += [f'output {{ name: "{name}" }}' for name in outputs.split()]
    return f'name: "e" platform: "ensemble" {" ".join(tensors)} ensemble_scheduling {{ {" ".join(written)} }} {more}'


@pytest.mark.parametrize(
    "text",
    [
        'name: "no ensemble" backend: "python"',
        ensemble("a: IN -> OUT"),
        ensemble("a: IN -> x", "b: x -> OUT"),
        ensemble("b: x -> OUT", "a: IN -> x"),
        ensemble("a: IN -> x", "b: IN -> y", "c: x y -> OUT"),
        ensemble("a: IN -> OUT x", "b: OUT x -> OUT2", outputs="OUT OUT2"),
        ensemble("a: IN IN2 -> x", "b: x IN2 -> OUT", inputs="IN IN2"),
        ensemble("a: IN -> x", "a: x -> OUT"),
        ensemble("a: IN -> OUT", outputs="IN OUT"),
    ],
)
def test_valid_graphs(text: str) -> None:
    validate_ensemble(parse_pbtxt(text, "f"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "e" platform: "ensemble"', "ensemble scheduling must be set for ensemble e whose platform is ensemble"),
        (
            'name: "e" ensemble_scheduling { step { } }',
            "model 'e' whose platform is not ensemble; add `platform: \"ensemble\"`",
        ),
        (
            ensemble("a: IN -> OUT", more="instance_group { count: 2 }"),
            "instance group should not be specified for ensemble 'e'",
        ),
        (ensemble("a: IN -> OUT", more="optimization { }"), "optimization should not be specified for ensemble 'e'"),
        (
            ensemble("a: IN -> OUT", more='model_warmup { name: "w" }'),
            "model_warmup can not be specified for ensemble 'e'",
        ),
        (ensemble(), "must specify 'step' for ensemble 'e'"),
        (ensemble("a: IN -> x", ": x -> OUT"), "must specify 'model_name' in step 1 of ensemble 'e'"),
        (ensemble("a: -> OUT"), "must specify 'input_map' in step 0 of ensemble 'e'"),
        (ensemble("a: IN ->"), "must specify 'output_map' in step 0 of ensemble 'e'"),
        (
            ensemble("a: IN -> x", "b: IN -> x", "c: x -> OUT"),
            "ensemble tensor 'x' can appear in an output map only once for ensemble 'e' step 1: step 0 writes it too",
        ),
        (
            ensemble("a: IN -> IN2 OUT", inputs="IN IN2"),
            "ensemble tensor 'IN2' is an input of ensemble 'e', step 0 writes it too",
        ),
        (ensemble("a: IN -> OUT", inputs="IN IN2"), "ensemble input 'IN2' for ensemble e' is not used"),
        (
            ensemble("a: IN -> OUT", outputs="OUT OUT2"),
            "ensemble output 'OUT2' for ensemble e' is not used: no step writes it",
        ),
        (ensemble("a: IN -> x", "b: y -> OUT"), "ensemble tensor 'y' of ensemble 'e' is read by step 1 ('b'), but"),
        (
            ensemble("a: IN -> x OUT"),
            "ensemble tensor 'x' is unused in ensemble 'e': step 0 ('a') writes it, nothing reads it",
        ),
        (
            ensemble("a: IN -> p", "b: p q -> OUT", "c: r -> q", "d: q -> r"),
            "circular dependency in ensemble 'e': the steps 1 ('b'), 2 ('c'), 3 ('d') wait for each other's outputs",
        ),
        (ensemble("a: IN x -> x OUT"), "circular dependency in ensemble 'e': the steps 0 ('a')"),
    ],
)
def test_invalid_graphs(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_ensemble(parse_pbtxt(text, "f"))
    assert said in raised.value.message
