"""The table of models in the start-up log."""

from conch.server.core.catalog import IndexEntry
from conch.server.core.loading.load_outcomes import model_table


def test_one_line_a_model_with_its_state() -> None:
    assert model_table([IndexEntry("echo", "1", "READY"), IndexEntry("a", "12", "UNAVAILABLE", "no such file")]) == (
        "+-------+---------+---------------------------+\n"
        "| Model | Version | Status                    |\n"
        "+-------+---------+---------------------------+\n"
        "| echo  | 1       | READY                     |\n"
        "| a     | 12      | UNAVAILABLE: no such file |\n"
        "+-------+---------+---------------------------+"
    )


def test_no_model_is_an_empty_table() -> None:
    assert model_table([]).count("\n") == 3


def test_a_long_reason_is_wrapped_in_its_column() -> None:
    reason = " ".join(f"word{i}" for i in range(40))
    lines = model_table([IndexEntry("m", "1", "UNAVAILABLE", reason)]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) < 120
    status = " ".join(line.split("|")[3].strip() for line in lines[3:-1])
    assert status == f"UNAVAILABLE: {reason}"


def test_lines_of_a_reason_are_kept() -> None:
    lines = model_table([IndexEntry("m", "1", "UNAVAILABLE", "config.pbtxt:3: bad\n\nhint: good")]).splitlines()
    assert [line.split("|")[3].strip() for line in lines[3:-1]] == [
        "UNAVAILABLE: config.pbtxt:3: bad",
        "",
        "hint: good",
    ]
