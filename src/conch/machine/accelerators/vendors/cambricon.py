"""Cambricon MLUs, by `cnmon`. Native names are as in Cambricon's mlu-exporter in Kubernetes.

Each card has two rows in the table of `cnmon`; older versions have no address on the bus there. UUIDs are in the file
`cnmon_info.json` that `cnmon info -j` writes into its working folder.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from conch.machine.accelerators.collectors import (
    AcceleratorAbsent,
    Collector,
    CollectorError,
    DeviceIdentity,
    DeviceSample,
    ProcessUsage,
    VendorSample,
    device_sample,
    native_values,
)
from conch.machine.accelerators.vendors.tool import (
    MEBIBYTE,
    PERCENT,
    item,
    malformed,
    number,
    parse_json,
    run_tool,
    scaled,
)

_TOOL = "cnmon"
_CARD_ROW = re.compile(r"(\d+)\s+(\S+)\s+(\S*[A-Za-z]\S*)\s+(\S+)")
_STATE_ROW = re.compile(r"(\S+)\s+(\S+?)C?\s+(\S+)\s*W?\s*/\s*(\S+)\s*W?")
_MEMORY = re.compile(r"(\S+)\s*MiB\s*/\s*(\S+)\s*MiB")
_PROCESS_ROW = re.compile(r"(\d+)\s+(\S+)\s+(\d+)\s+(.*?)\s+(\S+)\s*MiB")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")


class CambriconCollector(Collector):
    """Runs `cnmon` for each sample, and `cnmon info -j` once."""

    vendor: ClassVar[str] = "cambricon"

    def __init__(self) -> None:
        self._cards: Mapping[int, Mapping[str, Any]] = {}

    def start(self) -> None:
        if not parse_cnmon(run_tool(_TOOL)).devices:
            raise AcceleratorAbsent("cnmon lists no MLU")
        try:
            self._cards = _cards()
        except (CollectorError, OSError):
            self._cards = {}  # their addresses on the bus identify them

    def sample(self) -> VendorSample:
        return parse_cnmon(run_tool(_TOOL), self._cards)


def _cards() -> dict[int, Mapping[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="conch-cnmon-") as folder:
        run_tool(_TOOL, "info", "-e", "-m", "-u", "-j", folder=Path(folder))
        return parse_cards((Path(folder) / "cnmon_info.json").read_bytes())


def parse_cards(output: bytes) -> dict[int, Mapping[str, Any]]:
    """Return the cards of `cnmon_info.json` by number. Raises CollectorError."""
    rows = item(parse_json("cnmon info -j", output), "CnmonInfo")
    if not isinstance(rows, list):
        raise CollectorError(f"cnmon info -j: line 1: no CnmonInfo: {output[:80]!r}")
    return {int(row["CardNum"]): row for row in rows if str(item(row, "CardNum")).isdecimal()}


def parse_cnmon(output: bytes, cards: Mapping[int, Mapping[str, Any]] | None = None) -> VendorSample:
    """Return the sample of the tables of `cnmon`, with UUIDs from `cards`. Raises CollectorError."""
    usage: dict[int, tuple[ProcessUsage, ...]] = {}
    rows: list[tuple[int, list[str], list[str]]] = []
    card: tuple[int, list[str]] | None = None
    known = processes = False
    for n, line in enumerate(output.decode(errors="replace").splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        known, processes = known or "CNMON" in line, processes or cells[0] == "Processes:"
        if not line.startswith("|") or "===" in line:
            continue
        if processes:
            if process := _PROCESS_ROW.fullmatch(cells[0]):
                used = ProcessUsage(int(process[3]), _number(process[5], MEBIBYTE, n, line))
                usage[int(process[1])] = (*usage.get(int(process[1]), ()), used)
        elif len(cells) == 3 and (head := _CARD_ROW.fullmatch(cells[0])):
            card = int(head[1]), [head[3], *cells[1:]]
        elif len(cells) == 3 and card is not None:
            if not _STATE_ROW.fullmatch(cells[0]) or not _MEMORY.fullmatch(cells[1]):
                raise malformed(_TOOL, n, line)
            rows.append((card[0], card[1], cells))
            card = None
        elif re.match(r"\d", cells[0]):
            raise malformed(_TOOL, n, line)
    if not known:
        raise malformed(_TOOL, 1, output[:120].decode(errors="replace"))
    cards = cards or {}
    return VendorSample("cambricon", tuple(_device(row, cards.get(row[0], {}), usage.get(row[0], ())) for row in rows))


def _device(
    row: tuple[int, list[str], list[str]], card: Mapping[str, Any], usage: tuple[ProcessUsage, ...]
) -> DeviceSample:
    index, (name, where, state), (condition, memory, _) = row
    status, sizes = _STATE_ROW.fullmatch(condition), _MEMORY.fullmatch(memory)
    assert status is not None  # parse_cnmon has checked the rows
    assert sizes is not None
    bus = where if _BUS.fullmatch(where) else ""
    utilization, _, ecc = state.partition("%")
    line = " | ".join((where, state, condition, memory))
    used, total = (_number(sizes[number], MEBIBYTE, index, line) for number in (1, 2))
    readings = {
        "utilization_ratio": _number(utilization, PERCENT, index, line),
        "memory_used_bytes": used,
        "memory_total_bytes": total,
        "power_watts": _number(status[3], 1.0, index, line),
        "temperature_celsius": _number(status[2], 1.0, index, line),
    }
    errors = _number(ecc.split()[0] if ecc.split() else "", 1.0, index, line)
    uuid = str(item(card, "UUID") or f"cambricon-{bus or index}")
    identity = DeviceIdentity("cambricon", str(index), uuid, name, bus, aliases=(f"MLU-{uuid}", f"mlu{index}"))
    labels = {"mlu": str(index), "model": name, "uuid": uuid}
    native = {
        "mlu_utilization": scaled(readings["utilization_ratio"], 1 / PERCENT),
        "mlu_memory_used": used,
        "mlu_memory_total": total,
        "mlu_power_usage": readings["power_watts"],
        "mlu_temperature": readings["temperature_celsius"],
    }
    return device_sample(
        identity,
        readings,
        errors={} if errors is None else {"ecc": errors},
        native=native_values(native, labels),
        processes=usage,
        unsupported=() if errors is not None else ("ecc",),
    )


def _number(text: str, factor: float, n: int, line: str) -> float | None:
    """Return a number in base units, or None if it is not available; `n` and `line` are for the error."""
    try:
        return scaled(number(text), factor)
    except ValueError as error:
        raise malformed(_TOOL, n, line) from error
