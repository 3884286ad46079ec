"""Huawei Ascend NPUs, by `npu-smi info`. Native names are as in Huawei's npu-exporter.

The table of `npu-smi info` has one device per chip; a card may have two (Atlas A3), of which one reports the power of
both. `npu-smi info -t common` adds the clock and `-t board` the die's id, where the card has them.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import ClassVar

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
from conch.machine.accelerators.vendors.tool import MEBIBYTE, MEGAHERTZ, PERCENT, malformed, number, run_tool, scaled

_TOOL = "npu-smi"
_INFO = "npu-smi info"
_CARD_ROW = re.compile(r"(\d+)\s+(\S*[A-Za-z]\S*)")
_CHIP_ROW = re.compile(r"(\d+)(?:\s+(\d+))?")
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_CLOCKS_BUDGET_S = 1.0
_FREQUENCY = "Aicore curFreq(MHZ)"


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip in the table of `npu-smi info`. `number` is its number on the machine, `chip` that on its card."""

    card: int
    chip: int
    number: int
    name: str
    health: str
    bus: str
    power_watts: float | None
    temperature_celsius: float | None
    utilization_ratio: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    processes: tuple[ProcessUsage, ...] = ()


class AscendCollector(Collector):
    """Runs `npu-smi info` for all chips in each sample, then `npu-smi info -t common` for cards in turn.

    The second takes up to a second for a card, so that a sample reads as many clocks as its budget allows.
    """

    vendor: ClassVar[str] = "ascend"

    def __init__(self) -> None:
        self._dies: dict[tuple[int, int], str] = {}
        self._cards = deque[int]()  # the next to read the clocks of comes first
        self._clocks: dict[tuple[int, int], float] = {}

    def start(self) -> None:
        chips = parse_info(run_tool(_TOOL, "info"))
        if not chips:
            raise AcceleratorAbsent("npu-smi lists no NPU")
        for chip in chips:
            try:
                board = run_tool(_TOOL, "info", "-t", "board", "-i", str(chip.card), "-c", str(chip.chip))
            except CollectorError:
                continue  # its address on the bus identifies it
            die = next((section["VDie ID"] for section in sections(board) if "VDie ID" in section), "")
            self._dies[chip.card, chip.chip] = "-".join(die.split())

    def sample(self) -> VendorSample:
        chips = parse_info(run_tool(_TOOL, "info"))
        self._cards += sorted({chip.card for chip in chips} - set(self._cards))
        deadline = monotonic() + _CLOCKS_BUDGET_S
        for _ in range(len(self._cards)):
            self._read_clocks(self._cards[0])
            self._cards.rotate(-1)
            if monotonic() > deadline:
                break
        return ascend_sample(chips, self._clocks, self._dies)

    def _read_clocks(self, card: int) -> None:
        """Read the clocks of a card's chips; a card that does not report them has none."""
        try:
            clocks = parse_clocks(run_tool(_TOOL, "info", "-t", "common", "-i", str(card)))
        except CollectorError:
            clocks = {}
        kept = {key: clock for key, clock in self._clocks.items() if key[0] != card}
        self._clocks = kept | {(card, chip): clock for chip, clock in clocks.items()}


def parse_info(output: bytes) -> list[Chip]:
    """Return the chips in the table of `npu-smi info`. Raises CollectorError."""
    chips: list[Chip] = []
    usage: dict[tuple[int, int], tuple[ProcessUsage, ...]] = {}
    card: tuple[int, str, list[str]] | None = None
    known = False
    for n, line in enumerate(output.decode(errors="replace").splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        known = known or _INFO.split()[0] in line
        if not line.startswith("|") or not re.match(r"\d", cells[0]):
            continue
        try:
            if len(cells) > 3:
                npu, _, chip = cells[0].partition(" ")
                process = ProcessUsage(int(cells[1]), scaled(number(cells[3]), MEBIBYTE))
                usage[int(npu), int(chip)] = (*usage.get((int(npu), int(chip)), ()), process)
            elif len(cells) == 3 and (head := _CARD_ROW.fullmatch(cells[0])):
                card = int(head[1]), head[2], cells
            elif len(cells) == 3 and card is not None and (row := _CHIP_ROW.fullmatch(cells[0])):
                chips.append(_chip(card, row, cells, len(chips)))
            else:
                raise ValueError
        except (ValueError, IndexError) as error:
            raise malformed(_INFO, n, line) from error
    if not known:
        raise malformed(_INFO, 1, output[:120].decode(errors="replace"))
    return [replace(chip, processes=usage.get((chip.card, chip.chip), ())) for chip in chips]


def _chip(card: tuple[int, str, list[str]], row: "re.Match[str]", cells: list[str], position: int) -> Chip:
    """Return the chip of two rows of the table."""
    power, temperature = card[2][2].split()[:2]
    pairs = [(float(used), float(total)) for used, total in _PAIR.findall(cells[2])]
    # HBM where the chip has it, else DDR.
    used, total = next((pair for pair in reversed(pairs) if pair[1]), (None, None))
    return Chip(
        card[0],
        int(row[1]),
        position if row[2] is None else int(row[2]),
        card[1],
        card[2][1],
        cells[1],
        number(power),
        number(temperature),
        scaled(number(cells[2].split()[0]), PERCENT),
        scaled(used, MEBIBYTE),
        scaled(total, MEBIBYTE),
    )


def sections(output: bytes) -> Iterator[dict[str, str]]:
    """Yield the `key : value` blocks of an output of `npu-smi info -t …`; a blank line or a chip's name ends one."""
    section: dict[str, str] = {}
    for line in output.decode(errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if section and (not line.strip() or key.strip() == "Chip Name"):
            yield section
            section = {}
        if colon:
            section[key.strip()] = value.strip()
    if section:
        yield section


def parse_clocks(output: bytes) -> dict[int, float]:
    """Return the present clock of each chip of a card in hertz, from `npu-smi info -t common`."""
    clocks: dict[int, float] = {}
    for section in sections(output):
        try:
            clock = number(section.get(_FREQUENCY))
            if clock is not None:
                clocks[int(section.get("Chip ID", 0))] = clock * MEGAHERTZ
        except ValueError as error:
            raise malformed("npu-smi info -t common", 1, f"{_FREQUENCY}: {section[_FREQUENCY]}") from error
    return clocks


def ascend_sample(
    chips: Iterable[Chip], clocks: Mapping[tuple[int, int], float], dies: Mapping[tuple[int, int], str]
) -> VendorSample:
    """Return the sample of chips, with clocks and dies by card and chip."""
    return VendorSample("ascend", tuple(_sample(chip, clocks, dies) for chip in chips))


def _sample(chip: Chip, clocks: Mapping[tuple[int, int], float], dies: Mapping[tuple[int, int], str]) -> DeviceSample:
    clock = clocks.get((chip.card, chip.chip))
    die = dies.get((chip.card, chip.chip), "")
    # Device plugins name a chip after its type and number: Ascend910-3, Ascend310P-0.
    aliases = tuple(f"{kind}-{chip.number}" for kind in ("Ascend910", "Ascend310P", "Ascend310", "npu"))
    identity = DeviceIdentity(
        "ascend", str(chip.number), die or f"ascend-{chip.bus}", f"Ascend {chip.name}", chip.bus, aliases=aliases
    )
    labels = {"id": str(chip.number), "model_name": chip.name, "vdie_id": die, "pcie_bus_info": chip.bus}
    values = {
        "npu_chip_info_utilization": scaled(chip.utilization_ratio, 1 / PERCENT),
        "npu_chip_info_temperature": chip.temperature_celsius,
        "npu_chip_info_power": chip.power_watts,
        "npu_chip_info_hbm_used_memory": scaled(chip.memory_used_bytes, 1 / MEBIBYTE),
        "npu_chip_info_hbm_total_memory": scaled(chip.memory_total_bytes, 1 / MEBIBYTE),
        "npu_chip_info_aicore_current_freq": scaled(clock, 1 / MEGAHERTZ),
        "npu_chip_info_health_status": float(chip.health == "OK"),
    }
    return device_sample(
        identity,
        {
            "utilization_ratio": chip.utilization_ratio,
            "memory_used_bytes": chip.memory_used_bytes,
            "memory_total_bytes": chip.memory_total_bytes,
            "power_watts": chip.power_watts,
            "temperature_celsius": chip.temperature_celsius,
            "clock_hertz": clock,
        },
        native=native_values(values, labels),
        processes=chip.processes,
        attributes={"health": chip.health},
    )
