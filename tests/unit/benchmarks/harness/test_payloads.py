import json
import re
from dataclasses import replace

import numpy as np
from benchmarks.harness.load import WRK_SCRIPTS
from benchmarks.harness.payloads import Question, Wire, encode

QUESTION = Question("sum", {"INPUT0": np.zeros((1, 16), dtype=np.float32)}, "OUTPUT0", check=lambda _: None)


def test_the_request_of_a_sequence_has_what_the_load_generator_replaces() -> None:
    payload = encode(replace(QUESTION, sequence=10), Wire.BINARY)
    document = payload.body[: int(payload.headers["inference-header-content-length"])].decode()
    script = (WRK_SCRIPTS / "sequence.lua").read_text()
    replaced = set(re.findall(r"'(\"sequence_\w+\":\w+)'", script)) - {'"sequence_start":true', '"sequence_end":true'}
    assert len(replaced) == 3
    assert all(document.count(text) == 1 for text in replaced)
    assert payload.is_sequence


def test_other_requests_know_of_no_sequence() -> None:
    payload = encode(QUESTION, Wire.BINARY)
    assert "parameters" not in json.loads(payload.body[: int(payload.headers["inference-header-content-length"])])
    assert not payload.is_sequence
