"""The errors of forecasts, and their picture."""

import json
from xml.etree import ElementTree as ET

from benchmarks.predictions import DATA, FAMILIES, draw, summary

RECORDED = json.loads(DATA.read_text())


def test_errors_and_shares_are_those_of_the_cases() -> None:
    def case(value: float, measured: float) -> dict[str, object]:
        return {"predicted": {"p99": {"value": value, "low": 8.0, "high": 12.0}}, "measured": {"p99": measured}}

    data = {
        "families": {"a": {"cases": [case(10, 10), case(11, 10)]}, "b": {"cases": [case(20, 40), {"predicted": {}}]}}
    }
    by_family = summary(data)
    assert (by_family["a"][0], round(by_family["a"][1], 3), by_family["a"][2]) == (2, 0.05, 1.0)
    assert (by_family["b"][0], by_family["b"][1], by_family["b"][2]) == (1, 0.5, 0.0)
    assert (by_family["all"][0], round(by_family["all"][1], 3), round(by_family["all"][2], 3)) == (3, 0.1, 0.667)


def test_the_picture_has_each_measured_case() -> None:
    picture = ET.fromstring(draw(RECORDED))
    dots = [element for element in picture.iter() if element.get("class") == "dot"]
    assert len(dots) == summary(RECORDED)["all"][0]


def test_there_are_at_least_sixty_configurations_with_distinct_names() -> None:
    names = [(family.name, case.name) for family in FAMILIES for case in family.cases]
    assert len(set(names)) == len(names) >= 60
