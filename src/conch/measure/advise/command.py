"""`conch advise`: recommend an engine or backend, a layout, GPUs and instances for models."""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import count, duration, slo

_FAILURE = 1


def advise(arguments: Sequence[str]) -> int:
    """Print the advice; return the exit status: 0, 1 if nothing fits or a target is impossible, 2 for invalid flags."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.rules:
        from conch.measure.advise.report import rule_lines

        print("\n".join(rule_lines()))
        return 0
    if given.model is None:
        parser.error("the following arguments are required: MODEL")
    from conch.measure.advise.facts import Failure

    try:
        return _advise(given)
    except Failure as failure:
        print(f"conch advise: {failure}", file=sys.stderr)
    return _FAILURE


def _advise(given: Namespace) -> int:
    from conch.measure.advise.advice import advise as advise_on
    from conch.measure.advise.configuration import write_repository
    from conch.measure.advise.facts import Demand, Failure
    from conch.measure.advise.machine import read_machine, this_machine
    from conch.measure.advise.read_model import read_models
    from conch.measure.advise.report import as_document, text_lines

    machine = read_machine(given.machine) if given.machine else this_machine()
    models = [model for path in (given.model, *given.also) for model in read_models(path)]
    demand = Demand(
        slo=given.slo,
        rate=given.load,
        concurrency=given.concurrency,
        prompt_tokens=given.prompt_tokens,
        output_tokens=given.output_tokens,
        prefers_latency=given.lowest_latency,
        is_pipeline=given.pipeline,
    )
    advice = advise_on(models, machine, demand)
    if given.alternative and not given.measure:
        raise Failure("--alternative names what --measure compares: add it, such as --measure 3m")
    if given.measure:
        if given.machine:
            raise Failure("--measure measures on this machine: omit --machine")
        from conch.measure.advise.measure_backends import measure

        forms = [advise_on([model], machine, demand) for path in given.alternative for model in read_models(path)]
        advice = measure(advice, [form.models[0] for form in forms], given.measure)
    repository = str(given.write or "")
    if given.write is not None:
        write_repository(advice, given.write)
    if given.json:
        print(json.dumps(as_document(advice, repository), indent=2, ensure_ascii=False))
    else:
        print("\n".join(text_lines(advice, repository)))
    return 0


def _parser() -> CommandParser:
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
    parser.add_argument(
        "--also", metavar="MODEL", action="append", default=[], type=Path, help="another model on it; repeatable"
    )
    parser.add_argument(
        "--machine",
        metavar="TEXT",
        help="'4×A10G 24GiB, 32 cores, 128GiB', or a file in YAML or JSON (default: this machine)",
    )
    parser.add_argument("--slo", type=slo, default={}, metavar="TARGETS", help="ttft:500ms,itl:50ms,latency:100ms")
    parser.add_argument("--load", type=_rate, default=0.0, metavar="N/s", help="expected requests per second")
    parser.add_argument("--concurrency", type=count, default=0, metavar="N", help="concurrent requests")
    parser.add_argument("--prompt-tokens", type=count, default=0, metavar="N", help="tokens of a prompt")
    parser.add_argument("--output-tokens", type=count, default=0, metavar="N", help="tokens of an answer")
    parser.add_argument("--lowest-latency", action="store_true", help="prefer latency to simple deployment")
    parser.add_argument(
        "--pipeline",
        action="store_true",
        help="requests pass MODEL and each --also in this order; its ensemble is written",
    )
    parser.add_argument(
        "--measure",
        type=duration,
        default=0.0,
        metavar="TIME",
        help="serve backends of an ONNX file, and each --alternative, on these CPUs, and take the lowest P99: 3m",
    )
    parser.add_argument(
        "--alternative",
        metavar="MODEL",
        action="append",
        default=[],
        type=Path,
        help="the same model in another form, such as .xml or a model's folder, for --measure; repeatable",
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="write a repository with the configuration")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rules", action="store_true", help="print the rules and exit")
    return parser


def _rate(text: str) -> float:
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise ArgumentTypeError(f"'{text}' is not a rate: expected a form such as 20/s")
    return rate
