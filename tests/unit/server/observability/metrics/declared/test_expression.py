"""The expressions of declared metrics: what they compute, and what they refuse."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import ConchError, QueueFull
from conch.domain.declared_metrics.expression import ExpressionError, compile_expression
from conch.domain.declared_metrics.request_facts import AT_BEGIN, AT_END, ModelIdentity, PromptFacts, RequestFacts
from conch.domain.generation import GenerationRequest, SamplingParams, Usage
from conch.domain.request import InferRequest, ParameterValue, Timeline
from conch.domain.tensor import Tensor

MODEL = ModelIdentity("detector", "", 3)


def timeline() -> Timeline:
    timeline = Timeline(1_000_000_000)
    timeline.queued, timeline.started = 1_100_000_000, 1_300_000_000
    timeline.input_done, timeline.infer_done, timeline.done = 1_400_000_000, 1_900_000_000, 2_000_000_000
    return timeline


def facts(error: ConchError | None = None) -> RequestFacts:
    parameters: dict[str, ParameterValue] = {"tier": "gold", "weight": 2.5, "number": "7", "urgent": True}
    tensors = [Tensor("IN", "INT8", (4,), b"1234")]
    request = InferRequest("detector", tensors, parameters=parameters, timeline=timeline())
    request.batch_size = 4
    return RequestFacts(MODEL, request, error)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("duration", 1.0),
        ("queue_duration + compute_infer_duration", 0.7),
        ("compute_input_duration", 0.1),
        ("compute_output_duration", 0.1),
        ("duration / batch_size", 0.25),
        ("-batch_size % 3 // 1", 2),
        ("batch_size > 2 and success and not cache_hit", True),
        ("1 < batch_size <= 4", True),
        ('model in ("detector", "other")', True),
        ('"tect" in model', True),
        ("'large' if batch_size >= 4 else 'small'", "large"),
        ("min(batch_size, 3, 9) + max(1, 2) + abs(-1) + round(1.4)", 7),
        ("len(model)", 8),
        ('lower("ABC") + model', "abcdetector"),
        ('parameter("tier", "none")', "gold"),
        ('parameter("missing", "none")', "none"),
        ('parameter("weight", 1) * 2', 5.0),
        ('parameter("number", 0)', 7.0),
        ('parameter("tier", 0)', 0),
        ('parameter("urgent", False)', True),
        ('parameter("weight", "")', "2.5"),
        ("input_bytes", 4),
        ("prompt_tokens + completion_tokens + cached_tokens", 0),
        ("reason", ""),
        ("first_response_duration", 1.0),
    ],
)
def test_values(text: str, value: object) -> None:
    assert compile_expression(text, AT_END, None)(facts()) == pytest.approx(value)


def test_language_models_have_tokens_and_sampling_parameters() -> None:
    prompt = GenerationRequest(
        id="", model_name="detector", prompt="say", params=SamplingParams(temperature=0.5), timeline=timeline()
    )
    request = PromptFacts(MODEL, prompt, Usage(5, 7, 2))
    for name in AT_END:
        compile_expression(name, AT_END, None)(request)
    text = 'prompt_tokens * 100 + completion_tokens * 10 + cached_tokens + parameter("temperature", 0)'
    assert compile_expression(text, AT_END, "number")(request) == 572.5


def test_failures_have_a_reason() -> None:
    request = facts(QueueFull("full"))
    assert compile_expression("reason", AT_END, "text")(request) == "REJECTED"
    assert compile_expression("success", AT_END, "boolean")(request) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency", 'unknown name "latency"'),
        ("duratoin", 'did you mean "duration"'),
        ("duration +", "syntax error at column"),
        ("model", "is a text; a number is needed"),
        ("model * 1000000000", "`model` is a text; a number is needed"),
        ("'a' % batch_size", "is a text; a number is needed"),
        ("batch_size ** 99", "operator"),
        ("1 << 9999", "operator"),
        ("model.upper", "not allowed"),
        ("().__class__", "not allowed"),
        ("[1][0]", "not allowed"),
        ("(x for x in (1, 2))", "not allowed"),
        ("lambda: 1", "not allowed"),
        ("f'{model}'", "not allowed"),
        ("(batch_size := 2)", "not allowed"),
        ("__import__('os').system('id')", "not allowed"),
        ("eval('1')", "not allowed"),
        ("max(batch_size)", "takes 2 or more"),
        ("abs(1, 2)", "takes 1 arguments"),
        ("round(number=1)", "not allowed"),
        ("parameter('tier')", "a default"),
        ("parameter(model, 1)", "a default"),
        ("None", "not a number"),
        ("b'x'", "not a number"),
        ("1j", "not a number"),
        ("success is True", "write =="),
        ("batch_size in 4", "not a list in parentheses"),
        ("model < 3", "a text is needed"),
        ("1 and 2", "a boolean is needed"),
        ("~1", "not allowed"),
        ("1" * 2000, "the maximum is 1000"),
        ("", "syntax error"),
        ("\0", "null bytes"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(message)):
        compile_expression(text, AT_END, "number")


def test_a_request_that_begins_has_no_duration() -> None:
    with pytest.raises(ExpressionError, match="unknown name"):
        compile_expression("duration", AT_BEGIN, "number")


def test_a_deep_expression_ends_neither_parser_nor_server() -> None:
    for text in ("-" * 990 + "1", "(" * 400 + "1" + ")" * 400, "not " * 240 + "success"):
        with suppress(ExpressionError):
            compile_expression(text, AT_END, "number")(facts())


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz_()[]{}.,'\"+-*/%<>=! 0123456789\n", max_size=40))
def test_any_text_is_refused_or_evaluates(text: str) -> None:
    try:
        evaluate = compile_expression(text, AT_END, None)
    except ExpressionError:
        return
    with suppress(ArithmeticError):
        assert isinstance(evaluate(facts()), (bool, int, float, str))
