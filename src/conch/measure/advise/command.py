"""`conch advise`: recommend an engine or backend, a layout, GPUs and instances for models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.flag_values import value_kind
from conch.base.command_line.flags import flag_field, settings_field, settings_of
from conch.base.command_line.option_types import duration
from conch.base.command_line.say import say
from conch.base.errors import ConchError
from conch.measure.advise.advice_facts import Demand, Failure

_FAILURE = 1
_MODELS = value_kind("MODEL", Path)


@dataclass(frozen=True, slots=True)
class AdviseFlags:
    """The flags of the command."""

    # fmt: off
    also: tuple[Path, ...] = flag_field((), "", "another model on it; repeatable", _MODELS, repeatable=True)
    machine: str | None = flag_field(
        None, "", "'4×A10G 24GiB, 32 cores, 128GiB', or a file in YAML or JSON (default: this machine)",
        value_kind("TEXT"))
    demand: Demand = settings_field(Demand)
    measure: float = flag_field(
        0.0, "", "serve backends of an ONNX file, and each --alternative, on these CPUs, and take the lowest P99: 3m",
        value_kind("TIME", duration))
    alternative: tuple[Path, ...] = flag_field(
        (), "", "the same model in another form, such as .xml or a model's folder, for --measure; repeatable", _MODELS,
        repeatable=True)
    write: Path | None = flag_field(None, "", "write a repository with the configuration", value_kind("DIR", Path))
    json: bool = flag_field(False, "", "print JSON", value_kind(""), bare=True)
    rules: bool = flag_field(False, "", "print the rules and exit", value_kind(""), bare=True)
    # fmt: on


def advise(arguments: Sequence[str]) -> int:
    """Print the advice; return the exit status: 0, 1 if nothing fits or a target is impossible, 2 for invalid flags."""
    parser = CommandParser(
        "conch advise",
        epilog="exit status: 0 advised; 1 nothing fits, or a target is impossible; 2 usage",
        description="Recommend an engine or backend, a repository layout, GPUs and instances for models, with reasons "
        "and the source of each number.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=Path,
        help="a checkpoint or OpenVINO IR (folder), a .gguf, .onnx, .xml, .pt, .plan or .py file, or a repository",
    )
    parser.add_flags(AdviseFlags)
    given = parser.parse_args(arguments)
    flags = settings_of(AdviseFlags, given)
    if flags.rules:
        from conch.measure.advise.report import rule_lines

        print("\n".join(rule_lines()))
        return 0
    if given.model is None:
        parser.error("the following arguments are required: MODEL")
    try:
        return _advise(given.model, flags)
    except ConchError as failure:
        say(f"conch advise: {failure}")
    return _FAILURE


def _advise(model: Path, flags: AdviseFlags) -> int:
    from conch.measure.advise.advice import advise as advise_on
    from conch.measure.advise.configuration import write_repository
    from conch.measure.advise.machine import read_machine, this_machine
    from conch.measure.advise.read_model import read_models
    from conch.measure.advise.report import as_document, text_lines

    machine = read_machine(flags.machine) if flags.machine else this_machine()
    models = [facts for path in (model, *flags.also) for facts in read_models(path)]
    advice = advise_on(models, machine, flags.demand)
    if flags.alternative and not flags.measure:
        raise Failure("--alternative names what --measure compares: add it, such as --measure 3m")
    if flags.measure:
        if flags.machine:
            raise Failure("--measure measures on this machine: omit --machine")
        from conch.measure.advise.measure_backends import measure

        forms = [advise_on([form], machine, flags.demand) for path in flags.alternative for form in read_models(path)]
        advice = measure(advice, [form.models[0] for form in forms], flags.measure)
    repository = str(flags.write or "")
    if flags.write is not None:
        write_repository(advice, flags.write)
    if flags.json:
        print(json.dumps(as_document(advice, repository), indent=2, ensure_ascii=False))
    else:
        print("\n".join(text_lines(advice, repository)))
    return 0
