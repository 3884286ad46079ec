"""Trains the sentence encoder and writes models/sentence_encoder/1/model.onnx and models/sentence_tokens/1/pieces.txt.

    python examples/scripts/train_sentences.py

Two threads, about ten minutes; needs torch, onnx, onnxruntime, numpy, conch and the packages of `sentence_pairs.py`. It
learns to tell which of many texts belongs to a text (contrastive training). The first 32 or 64 numbers of a vector are
trained to do by themselves, so that clients may ask for that many `dimensions`.

At the end it prints how often the right text is the nearest of all. Of 66 questions about Conch by a wording that was
not learnt, 48 % find their answer among 1,132, by words alone (TF-IDF) 45 %; of 488 first sentences of docstrings that
were not learnt at all, 54 % find another passage of the same docstring, by words alone 36 %. Chance is below 0.3 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

MODELS = Path(__file__).resolve().parent.parent / "models"
# The serving code itself, so that training cannot drift from how the server cuts texts.
sys.path.append(str(MODELS / "sentence_tokens" / "1"))

from muon import Muon  # noqa: E402
from sentence_network import SentenceEncoder, Shape  # noqa: E402
from sentence_pairs import Held, Lessons, lessons  # noqa: E402
from sentence_vocabulary import learn  # noqa: E402
from wordpiece import FIRST, PADDING, WordPieces  # noqa: E402

SEED = 5
PIECES = 8000
BATCH, STEPS = 512, 400
MAX_TRAINING_PIECES = 32  # pieces of a text while training
SIZES = (32, 64, 128)
TEMPERATURE = 0.05
MUON_RATE, ADAM_RATE = 0.02, 4e-3


def main() -> None:
    """Collect, train, export, examine."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--models", type=Path, default=MODELS)
    arguments.add_argument("--steps", type=int, default=STEPS)
    options = arguments.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    taught = lessons(random.Random(SEED))
    vocabulary = learn((text for group in taught.groups for text in group), PIECES)
    pieces = WordPieces(vocabulary)
    network = SentenceEncoder(Shape(vocabulary=FIRST + len(vocabulary)))
    size = sum(weight.numel() for weight in network.parameters())
    print(f"{len(taught.groups)} groups, {len(vocabulary)} pieces, {size:,} parameters", flush=True)
    train(network, batches(taught, pieces, options.steps), options.steps)
    (options.models / "sentence_tokens" / "1" / "pieces.txt").write_text("\n".join(vocabulary) + "\n")
    path = options.models / "sentence_encoder" / "1" / "model.onnx"
    export(network.eval(), path)
    examine(path, taught, pieces)


def batches(taught: Lessons, pieces: WordPieces, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each step two texts of each of `BATCH` groups, as padded numbers [batch, tokens]."""
    chance = random.Random(SEED)
    encoded = [[pieces.encode(text, MAX_TRAINING_PIECES) for text in group] for group in taught.groups]
    waiting: list[list[list[int]]] = []
    for _ in range(steps):
        if len(waiting) < BATCH:
            waiting = chance.sample(encoded, len(encoded))
        chosen, waiting = waiting[:BATCH], waiting[BATCH:]
        pairs = [chance.sample(group, 2) for group in chosen]
        yield padded([pair for pair, _ in pairs]), padded([other for _, other in pairs])


def padded(texts: Sequence[Sequence[int]]) -> Tensor:
    """Return texts of different lengths as one array."""
    longest = max(map(len, texts))
    return torch.tensor([[*text, *[PADDING] * (longest - len(text))] for text in texts])


def train(network: SentenceEncoder, given: Iterator[tuple[Tensor, Tensor]], steps: int) -> None:
    """Muon for the layers' matrices, Adam for the rest; both rates rise for a moment and fall to nothing."""
    matrices = [weight for weight in network.blocks.parameters() if weight.ndim == 2]
    others = [weight for weight in network.parameters() if all(weight is not matrix for matrix in matrices)]
    optimizers = (Muon(matrices, lr=MUON_RATE), torch.optim.Adam(others, lr=ADAM_RATE, betas=(0.9, 0.95)))
    rates = (MUON_RATE, ADAM_RATE)
    started = time.monotonic()
    for step, (texts, partners) in enumerate(given):
        pace = min(1.0, (step + 1) / 20) * min(1.0, 1.2 * (1 - step / steps))
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * pace
        with torch.autocast("cpu", torch.bfloat16):
            left, right = network(texts), network(partners)
        loss = contrast(left.float(), right.float())
        network.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s", flush=True)


def contrast(vectors: Tensor, partners: Tensor) -> Tensor:
    """Contrastive loss of each text against the batch, for each prefix of the vectors in `SIZES`."""
    places = torch.arange(len(vectors))
    losses = []
    for size in SIZES:
        scores = functional.normalize(vectors[:, :size]) @ functional.normalize(partners[:, :size]).T / TEMPERATURE
        losses += [functional.cross_entropy(scores, places), functional.cross_entropy(scores.T, places)]
    return torch.stack(losses).mean()


def export(network: SentenceEncoder, path: Path) -> None:
    """Write the network as ONNX; weights are kept as FP16 and widened when the file is loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        network,
        (torch.ones(2, 8, dtype=torch.int64),),
        str(path),
        input_names=["input_ids"],
        output_names=["embedding"],
        dynamic_axes={"input_ids": {0: "batch", 1: "tokens"}, "embedding": {0: "batch"}},
        opset_version=20,
        dynamo=False,  # the newer exporter needs onnxscript, and this graph needs nothing of it
    )
    model = onnx.load(str(path))
    for weight in list(model.graph.initializer):
        array = onnx.numpy_helper.to_array(weight)
        if array.dtype == np.float32 and array.size > 1000:
            model.graph.initializer.remove(weight)
            halved = onnx.numpy_helper.from_array(array.astype(np.float16), f"{weight.name}_fp16")
            model.graph.initializer.append(halved)
            widened = onnx.helper.make_node("Cast", [halved.name], [weight.name], to=onnx.TensorProto.FLOAT)
            model.graph.node.insert(0, widened)
    model.doc_string = ""
    # The exporter takes the vectors' length for one that may change.
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = network.pieces.embedding_dim
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    print(f"{path.stat().st_size:,} bytes")


def examine(path: Path, taught: Lessons, pieces: WordPieces) -> None:
    """Print how often the right text is the nearest, through the file that is served."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def vectors(texts: Sequence[str], size: int) -> NDArray[np.float32]:
        rows = [session.run(None, {"input_ids": np.array([pieces.encode(text, 128)])})[0][0, :size] for text in texts]
        return np.stack(rows) / np.linalg.norm(rows, axis=1, keepdims=True)

    def report(what: str, held: Sequence[Held], candidates: Sequence[str]) -> None:
        for size in SIZES:
            scores = vectors([pair.question for pair in held], size) @ vectors(candidates, size).T
            own = scores[np.arange(len(held)), [pair.answer for pair in held]]
            rank = (scores > own[:, None]).sum(1)
            print(
                f"{what}, {len(held)} among {len(candidates)}, {size} numbers: "
                f"nearest {np.mean(rank < 1):.3f}, among the 5 nearest {np.mean(rank < 5):.3f}"
            )

    report("known answers, new wordings", taught.worded, taught.answers)
    report("texts never seen", taught.unseen, taught.passages)


if __name__ == "__main__":
    main()
