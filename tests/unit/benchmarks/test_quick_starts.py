"""Lines of code, and the table of the quick starts."""

from benchmarks.quick_starts import FILES, Contender, code_lines, table


def contender(file: str, rates: list[float]) -> Contender:
    return Contender(file, [], 1, "/", {}, None, {1: rates, 16: rates}, {1: [0.5], 16: [0.25]})


def test_blank_lines_and_comments_are_not_code() -> None:
    assert code_lines("# one\nimport a\n\n\ndef f(\n    x,  # two\n):\n    return x\n") == 5


def test_conch_needs_at_most_as_many_lines() -> None:
    for pair in (
        ("inference_engine_litserve.py", "inference_engine_conch.py"),
        ("summarization_bentoml.py", "summarization_conch.py"),
    ):
        other, conch = (code_lines((FILES / file).read_text()) for file in pair)
        assert conch <= other


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    pair = (contender("summarization_bentoml.py", [10, 10, 20]), contender("summarization_conch.py", [20, 60, 20]))
    rows = list(table([pair]))
    assert rows[2].split(" | ")[2:] == ["1", "10", "0.50", "11", "20", "2.0 (1.0 to 6.0)", "0.50 |"]
    assert len(rows) == 4
