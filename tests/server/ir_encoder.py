"""Writes the smallest sentence encoder in OpenVINO's form: an IR that looks words up, and its tokenizer's IR."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as opset

WORDS = ("[PAD]", "[UNK]", "one", "two", "three", "##s")


def write_encoder(folder: Path, table: NDArray[np.float32]) -> None:
    """Write a model whose vector of a text is the mean of the rows of `table` [len(WORDS), size] for its words."""
    folder.mkdir(parents=True)
    ov.save_model(_network(table), folder / "openvino_model.xml", compress_to_fp16=False)
    tokenizer, detokenizer = _tokenizer(WORDS)
    ov.save_model(tokenizer, folder / "openvino_tokenizer.xml")
    ov.save_model(detokenizer, folder / "openvino_detokenizer.xml")
    (folder / "config.json").write_text(json.dumps({"hidden_size": table.shape[1], "max_position_embeddings": 5}))


def _network(table: NDArray[np.float32]) -> ov.Model:
    input_ids, mask = (opset.parameter([-1, -1], np.int64, name=name) for name in ("input_ids", "attention_mask"))
    rows = opset.gather(opset.constant(table), input_ids, opset.constant(0))
    # A model that would not look at the mask would be given none.
    rows = opset.multiply(rows, opset.convert(opset.unsqueeze(mask, opset.constant(2)), "f32"))
    result = opset.result(rows)
    for node, name in ((input_ids, "input_ids"), (mask, "attention_mask"), (result, "last_hidden_state")):
        node.output(0).set_names({name})
    return ov.Model([result], [input_ids, mask])


def _tokenizer(words: Sequence[str]) -> tuple[ov.Model, ov.Model]:
    # Its package is loaded late: it registers operations with OpenVINO for the whole process.
    from openvino_tokenizers import tokenizer_pipeline as steps
    from openvino_tokenizers.utils import change_inputs_type, change_outputs_type

    pipeline = steps.TokenizerPipeline()
    pipeline.add_steps(
        [
            steps.SpecialTokensSplit([steps.SpecialToken("[PAD]")]),
            steps.WhitespaceSplitStep(),
            steps.WordPieceTokenizationStep(vocab=list(words)),
            steps.CombineSegmentsStep([steps.Sequence(token_type_id=0)]),
            steps.PaddingStep(token="[PAD]", _token_id=0),
        ]
    )
    pieces = [word[2:] if word.startswith("##") else f" {word}" for word in words]
    decoding = steps.TokenizerPipeline()
    decoding.add_steps([steps.VocabDecoderStep(vocab=pieces, skip_tokens=[0]), steps.FuseStep()])
    tokenizer = change_outputs_type(pipeline.get_tokenizer_ov_subgraph(), ov.Type.i64)
    return tokenizer, change_inputs_type(decoding.get_detokenizer_ov_subgraph(), ov.Type.i64)
