"""The phases of loads: what the reader shows of what the clock writes."""

import os
import re

from conch.clients.run.loading import LoadClock, LoadReader
from conch.server.repository.namespaces import ModelId

DIGITS, OTHER = ModelId("", "digits"), ModelId("", "other")


def test_the_reader_gets_phases_then_address_and_seconds() -> None:
    reader, writer = os.pipe()
    clock, load = LoadClock(writer), LoadReader(reader)
    assert load.read(0) == ""
    clock.enter(DIGITS, "reading")
    clock.enter(DIGITS, "starting")
    assert (load.read(), load.ended) == ("starting digits", False)
    clock.enter(DIGITS, "")
    text = clock.ready("127.0.0.1:8000", "GPU 0,\tGPU 1")
    assert (load.read(), load.ended) == ("", True)
    assert (load.address, load.seconds) == ("127.0.0.1:8000", text)
    assert re.fullmatch("GPU 0,.GPU 1", load.devices)
    assert re.fullmatch(r"\d+\.\d s(: \w.* s)?", text)


def test_a_server_that_ends_leaves_no_address() -> None:
    reader, writer = os.pipe()
    load = LoadReader(reader)
    LoadClock(writer).enter(DIGITS, "reading\t")
    os.close(writer)
    load.show()
    assert (load.ended, load.address) == (True, "")


def test_loads_of_several_models_have_no_seconds_of_phases() -> None:
    clock = LoadClock(None)
    for model in (DIGITS, OTHER):
        clock.enter(model, "reading")
    assert re.fullmatch(r"\d+\.\d s", clock.ready("127.0.0.1:8000", "CPU"))
