"""`conch engine`: plan the GPUs for a language model."""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import count

_FAILURE = 1


def engine(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 if nothing fits or after a failure, 2 for invalid arguments."""
    from conch.base.errors import ConchError

    try:
        return _plan(_parser().parse_args(arguments))
    except ConchError as error:
        print(f"conch engine plan: {error}", file=sys.stderr)
    return _FAILURE


def _plan(given: Namespace) -> int:
    from conch.base.errors import InvalidRequest
    from conch.measure.advise.engine.plan_output import print_json, print_plan
    from conch.measure.advise.planning.checkpoint import read_checkpoint
    from conch.measure.advise.planning.gpus import detect_gpus, parse_gpus
    from conch.measure.advise.planning.plan import Workload, plan

    dtype_bytes = _DTYPES[given.dtype] if given.dtype else None
    model = read_checkpoint(Path(given.model), dtype_bytes=dtype_bytes, quantization=given.quantization or "")
    length = given.max_model_len or model.shape.context
    if not length:
        raise InvalidRequest("the checkpoint does not contain its context length: give --max-model-len")
    if model.shape.context and length > model.shape.context:
        raise InvalidRequest(f"--max-model-len {length} is above the model's context of {model.shape.context} tokens")
    gpus = parse_gpus(given.gpus, given.nodes) if given.gpus else detect_gpus(given.nodes)
    workload = Workload(
        length=length,
        concurrency=given.concurrency,
        utilization=given.gpu_memory_utilization,
        kv_bytes=1 if given.kv_cache_dtype == "fp8" else max(model.other_bytes, 2),
    )
    found = plan(model, gpus, workload)
    (print_json if given.json else print_plan)(model, gpus, workload, found, given.quantization or "")
    return 0 if found.best else _FAILURE


_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _parser() -> CommandParser:
    from conch.measure.advise.planning.checkpoint import QUANTIZATIONS

    parser = CommandParser("conch engine", description="Plan engines for language models.")
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)
    planning = commands.add_parser("plan", help="calculate on how many GPUs a model fits", description=_PLAN)
    planning.add_argument("model", metavar="MODEL", help="folder of a checkpoint, or its config.json")
    planning.add_argument(
        "--gpus", metavar="NxSIZE", help="GPUs of a machine, such as 8x80GiB (default: the GPUs of this machine)"
    )
    planning.add_argument("--nodes", type=count, default=1, metavar="N", help="number of machines with these GPUs")
    planning.add_argument(
        "--max-model-len", type=count, metavar="N", help="tokens of a sequence (default: the model's context)"
    )
    planning.add_argument("--concurrency", type=count, default=1, metavar="N", help="number of concurrent sequences")
    planning.add_argument("--dtype", choices=_DTYPES, help="type of the weights (default: as stored)")
    planning.add_argument("--quantization", choices=QUANTIZATIONS, help="quantization of the weights when loaded")
    planning.add_argument("--kv-cache-dtype", choices=("auto", "fp8"), default="auto", help="type of the KV cache")
    planning.add_argument(
        "--gpu-memory-utilization",
        type=_share,
        default=0.9,
        metavar="X",
        help="share of a GPU's memory for the engine (default: %(default)s)",
    )
    planning.add_argument("--json", action="store_true", help="print JSON")
    return parser


_PLAN = (
    "For each division of a model among GPUs (tensor parallelism times pipeline parallelism), calculate the weights "
    "and KV cache on each GPU and the number of concurrent sequences, or the reason why it does not fit; and recommend "
    "one. The exit status is 1 if none fits."
)


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise ArgumentTypeError(f"must be above 0 and at most 1, got '{text}'")
