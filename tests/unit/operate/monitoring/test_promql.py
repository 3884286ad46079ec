import pytest

from conch.operate.monitoring.promql import (
    Binary,
    LabelMatcher,
    Number,
    PromqlError,
    Selector,
    metric_names,
    metric_uses,
    parse,
    render,
    rewrite,
    walk,
)

QUERIES = [
    "up == 0",
    'sum by (model, version) (rate(x_total{job="y", a!~"b|c"}[5m] offset 1m)) > 3',
    'a > on (model) group_left (max_qps) label_replace(b{c!=""}, "model", "$1", "c", "(.+)")',
    "topk(5, x)",
    "max_over_time(rate(x[1m])[10m:30s])",
    "predict_linear(x[5m], 120) - -1 ^ 2",
    "(a + b) * c",
    "a / (b / c)",
    "a ^ b ^ c",
    "-(a + b)",
    "a and on () b unless c",
    "x @ end() offset 1h30m",
    'quantile_over_time(0.99, x{le="+Inf"}[1w])',
    "a > bool b",
    '{"a name with spaces", b="c"}',
    '{__name__=~"foo.*"}',
    'x{a="1" or b="2"}',
    "count without (instance) (x)",
    "vector(1e+100)",
    'label_join(x, "a", ",", "b")',
    'x{a="q\\"uote"}',
    "holt_winters(x[5m], 0.5, 0.5) - double_exponential_smoothing(y[5m], 0.5, 0.5)",
]


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_survives_parsing_and_rendering(text: str) -> None:
    tree = parse(text)
    assert parse(render(tree)) == tree


def test_a_function_that_prometheus_3_renamed_keeps_its_name() -> None:
    text = "abs(double_exponential_smoothing(holt_winters[5m], 0.1, 0.2)) > holt_winters(x[5m], 0.1, 0.2)"
    assert render(parse(text)) == text


def test_rendering_is_the_text_where_spacing_agrees() -> None:
    assert render(parse(QUERIES[1])) == QUERIES[1]
    assert render(parse(QUERIES[2])) == QUERIES[2]


def test_rendering_adds_the_parentheses_that_a_rewritten_tree_needs() -> None:
    tree = rewrite(
        parse("a * c"), lambda node: parse("x + y") if isinstance(node, Selector) and node.metric == "a" else node
    )
    assert render(tree) == "(x + y) * c"
    assert render(Binary("/", Selector("a"), Binary("/", Selector("b"), Number(2)))) == "a / (b / 2)"
    assert render(rewrite(parse("-a ^ 2"), lambda n: Number(3) if isinstance(n, Selector) else n)) == "-3 ^ 2"
    assert render(Binary("^", Number(-1), Number(2))) == "(-1) ^ 2"


def test_metrics_are_found_with_matchers_places_and_functions() -> None:
    text = 'sum(rate(a_total{model="m"}[1m])) / b{a_total="x"} > on (b) histogram_quantile(0.9, c) # a_total'
    uses = metric_uses(parse(text))
    assert [(use.selector.metric, use.functions) for use in uses] == [
        ("a_total", ("rate", "sum")),
        ("b", ()),
        ("c", ("histogram_quantile",)),
    ]
    assert uses[0].selector.matchers == (LabelMatcher("model", "=", "m"),)
    assert [text[use.selector.place :][:1] for use in uses] == ["a", "b", "c"]
    assert metric_names(parse(text)) == {"a_total", "b", "c"}


def test_nodes_come_with_those_above_them() -> None:
    *_, (node, above) = walk(parse("sum(rate(x[1m]))"))
    assert node == Selector("x", range_s=60)
    assert [type(node).__name__ for node in above] == ["Aggregation", "Call"]


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("sum(x) + nope(x)", "unknown function with name 'nope'", 9),
        ("foo bar", "invalid promql query", 4),
        ("1 + rate(x)", "expected type matrix in call to function 'rate', got vector", 4),
        ("", "no expression found in input", 0),
    ],
)
def test_errors_have_a_place(text: str, message: str, offset: int) -> None:
    with pytest.raises(PromqlError, match=message) as raised:
        parse(text)
    assert raised.value.offset == offset


def test_label_matchers_match_whole_values() -> None:
    assert LabelMatcher("a", "=~", "b|c").matches("c")
    assert not LabelMatcher("a", "=~", "b").matches("bb")
    assert LabelMatcher("a", "!=", "").matches("x")
