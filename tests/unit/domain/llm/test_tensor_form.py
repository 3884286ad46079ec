"""A generation as tensors."""

import numpy as np
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.generation import Delta, FinishReason, Usage
from conch.domain.llm.tensor_form import TensorForm, sampling_params
from conch.domain.request import InferRequest
from conch.domain.tensor import BYTES, Tensor, pack_bytes


def streamed(**flags: bool) -> TensorForm:
    inputs = [Tensor("text_input", BYTES, (1,), pack_bytes(["Hello"]))]
    inputs += [Tensor.from_numpy(name, np.array([value])) for name, value in {"stream": True, **flags}.items()]
    return TensorForm.of(InferRequest("m", inputs), 1)


def test_tokens_of_a_torn_character_are_counted_with_the_rest_of_it() -> None:
    form = streamed(return_num_output_tokens=True)
    assert form.responses([Delta(0, "", (1,)), Delta(0, "", (2,))], None) == []
    (first,) = form.responses([Delta(0, "é", (3,))], None)
    end = Usage(1, 5)
    assert form.responses([Delta(0, "", (4,)), Delta(0, "!", (5,), FinishReason.STOP)], end) == []
    last = form.last(end)
    assert last is not None
    counts = [response.output("num_output_tokens").to_numpy().tolist() for response in (first, last)]
    assert counts == [[3], [2]]


def test_sampling_parameters_of_vllm_are_read() -> None:
    given = {
        "bad_words": ["a", "b"],
        "allowed_token_ids": "[1, 2]",
        "truncate_prompt_tokens": "-1",
        "spaces_between_special_tokens": "false",
    }
    params = sampling_params(given)
    assert params.bad_words == ("a", "b")
    assert params.allowed_token_ids == (1, 2)
    assert params.truncate_prompt_tokens == -1
    assert not params.spaces_between_special_tokens
    with pytest.raises(InvalidRequest, match="unknown sampling parameter 'use_beams'"):
        sampling_params({"use_beams": 1})
