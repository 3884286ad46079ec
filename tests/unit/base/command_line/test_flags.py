"""Flags that dataclasses declare, parsed with argparse to the dataclass."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass

import pytest

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import declared_flags, flag_field, settings_field, settings_of


def _pair(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    return name, int(number)


@dataclass(frozen=True)
class Window:
    duration_s: float = flag_field(10.0, "window", "of a level", value_kind("S", float), name="duration")
    exact: bool = flag_field(True, "window", "round times", value_kind(""), name="round", bare=True)


@dataclass(frozen=True)
class Settings:
    words: tuple[str, ...] = ()
    model: str | None = flag_field(None, "target", "the model", value_kind("NAME"), aliases=("m",))
    kind: str = flag_field("tensors", "target", "", one_of("tensors", "text"))
    window: Window = settings_field(Window)
    header: tuple[str, ...] = flag_field((), "", "repeatable", value_kind("TEXT"), repeatable=True)
    shapes: Mapping[str, int] = flag_field({}, "", "", value_kind("PAIR", _pair), name="shape", repeatable=True)
    quiet: bool = flag_field(False, "", "", value_kind(""), bare=True)


@dataclass(frozen=True)
class Target:
    model_name: str = flag_field(MISSING, "", "", value_kind("NAME"), aliases=("m", "model"))


def parsed(*arguments: str) -> Settings:
    parser = CommandParser("program")
    parser.add_argument("words", nargs="*")
    parser.add_flags(Settings, {"window": "a time in seconds"})
    given = parser.parse_args(arguments)
    return settings_of(Settings, given, words=tuple(given.words))


def test_without_flags_the_dataclass_has_its_defaults() -> None:
    assert parsed() == Settings()


def test_values_reach_their_fields_also_of_nested_settings() -> None:
    settings = parsed("a", "-m", "x", "--kind=text", "--duration", "2", "--round", "--quiet")
    assert settings == Settings(("a",), "x", "text", Window(2.0, exact=False), quiet=True)


def test_repeatable_flags_become_tuples_and_mappings() -> None:
    settings = parsed("--header=a", "--header=b", "--shape=x=1", "--shape=y=2")
    assert settings.header == ("a", "b")
    assert settings.shapes == {"x": 1, "y": 2}
    assert Settings().shapes == {}


def test_headings_come_as_listed_then_as_met(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")
    text = capsys.readouterr().out
    assert text.index("\nwindow:\n  a time in seconds") < text.index("\ntarget:")


def test_an_unknown_choice_is_refused_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--kind=texts")
    assert ended.value.code == 2
    assert "unknown value 'texts'; did you mean 'text'?" in capsys.readouterr().err


def test_flags_are_named_after_their_fields() -> None:
    names = [flag.name for flag in declared_flags(Settings)]
    assert names == ["model", "kind", "duration", "round", "header", "shape", "quiet"]


def test_a_flag_without_a_default_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser("program")
    parser.add_flags(Target)
    for words in (["-m", "x"], ["--model=x"], ["--model-name=x"]):
        assert settings_of(Target, parser.parse_args(words)) == Target("x")
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "the following arguments are required: -m/--model/--model-name" in capsys.readouterr().err
