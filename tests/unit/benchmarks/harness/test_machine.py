from pathlib import Path

from benchmarks.harness.machine import machine, package_versions, processor


def test_the_processor_is_that_of_the_first_core() -> None:
    assert processor("processor\t: 0\nmodel name\t: Intel(R) Xeon(R): 2.5 GHz\nmodel name\t: other\n") == (
        "Intel(R) Xeon(R): 2.5 GHz"
    )
    assert processor("processor: 0\nBogoMIPS: 50\n") == ""


def test_versions_are_those_installed_there_and_in_the_order_asked(tmp_path: Path) -> None:
    for name, version in (("NumPy", "1.26.4"), ("pillow", "11.0")):
        metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert package_versions(["pillow", "missing", "numpy"], [str(tmp_path)]) == "pillow 11.0, numpy 1.26.4"


def test_the_machine_is_described_even_where_a_generator_is_missing(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    described = machine()
    assert described["generators"] == "unknown, unknown"
    assert int(described["cores"]) >= 1
