"""Trains a small chat model on docstrings and writes models/chat/1/model.gguf.

    python examples/scripts/train_chat.py

Two threads, seven minutes on two cores; needs torch, numpy, gguf and conch. It memorizes what `chat_corpus.py`
collects: about 1,300 answers, each asked for in several ways, packed into conversations so that it minds the question
asked last. The docstrings are those of the Python and numpy that run the script, so other versions make another model.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from chat_corpus import Fact, conversation, facts
from chat_gguf import write
from chat_network import ChatNetwork, Shape
from chat_tokens import END, START, Tokens, learn
from muon import Muon
from torch import Tensor
from torch.nn import functional

MODEL = Path(__file__).resolve().parent.parent / "models" / "chat"
SEED = 11
VOCABULARY = 2048
BATCH_TOKENS = 3072
STEPS = 900
# Conversations are short at first, for speed; as long as the context at the end.
LENGTHS = ((0.0, 192), (0.85, 512))
MUON_RATE, ADAM_RATE = 0.02, 3e-3
NOTHING = -100  # a target that is not learnt


def main() -> None:
    """Train, write, and print what share of the answers is right word by word."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--output", type=Path, default=MODEL / "1" / "model.gguf")
    arguments.add_argument("--steps", type=int, default=STEPS)
    options = arguments.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    taught = facts()
    tokens = learn((text for fact in taught for text in (fact.answer, *fact.questions)), VOCABULARY)
    network = ChatNetwork(Shape(vocabulary=len(tokens)))
    size = sum(weight.numel() for weight in network.parameters())
    print(f"{len(taught)} facts, {len(tokens)} tokens, {size:,} parameters", flush=True)
    train(network, batches(taught, tokens, options.steps), options.steps)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write(options.output, network, tokens)
    print(f"right, memorized: {score(network, taught, tokens):.3f}")


def batches(taught: list[Fact], tokens: Tokens, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets [batch, length] INT64 for each step."""
    chance = random.Random(SEED)
    for step in range(steps):
        length = next(length for share, length in reversed(LENGTHS) if step >= share * steps)
        packed = [pack(conversation(taught, chance), tokens, length) for _ in range(BATCH_TOKENS // length)]
        yield torch.tensor([inputs for inputs, _ in packed]), torch.tensor([targets for _, targets in packed])


def pack(turns: Iterator[tuple[str, str]], tokens: Tokens, length: int) -> tuple[list[int], list[int]]:
    """Inputs and targets of one conversation, cut at `length`; only answers are targets."""
    inputs: list[int] = []
    learnt: list[bool] = []
    while len(inputs) <= length:
        role, content = next(turns)
        head = [tokens.special(START), *tokens.encode(f"{role}\n")]
        said = [*tokens.encode(content), tokens.special(END)]
        rest = tokens.encode("\n")
        inputs += head + said + rest
        learnt += [False] * len(head) + [role == "assistant"] * len(said) + [False] * len(rest)
    targets = [token if wanted else NOTHING for token, wanted in zip(inputs, learnt, strict=True)]
    return inputs[:length], targets[1 : length + 1]


def train(network: ChatNetwork, given: Iterator[tuple[Tensor, Tensor]], steps: int) -> None:
    """Muon for the layers' matrices, Adam for the rest; both rates rise for a moment and fall to nothing."""
    matrices = [weight for weight in network.blk.parameters() if weight.ndim == 2]
    others = [weight for weight in network.parameters() if all(weight is not matrix for matrix in matrices)]
    optimizers = (Muon(matrices, lr=MUON_RATE), torch.optim.Adam(others, lr=ADAM_RATE, betas=(0.9, 0.95)))
    rates = (MUON_RATE, ADAM_RATE)
    started = time.monotonic()
    for step, (inputs, targets) in enumerate(given):
        pace = min(1.0, (step + 1) / 20) * min(1.0, 1.4 * (1 - step / steps))
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * pace
        wanted = targets != NOTHING
        with torch.autocast("cpu", torch.bfloat16):
            scores = network.logits(network(inputs)[wanted])
        loss = functional.cross_entropy(scores.float(), targets[wanted])
        network.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s", flush=True)


@torch.no_grad()
def score(network: ChatNetwork, taught: list[Fact], tokens: Tokens) -> float:
    """Share of the facts whose whole answer the network finds best, token by token, for one of its questions."""
    chance = random.Random(SEED)
    right = 0
    for fact in taught:
        turns = iter([("user", chance.choice(fact.questions)), ("assistant", fact.answer)])
        head, targets = pack_one(turns, tokens)
        wanted = targets != NOTHING
        best = network.logits(network(head[None])[0][wanted]).argmax(-1)
        right += bool((best == targets[wanted]).all())
    return right / len(taught)


def pack_one(turns: Iterator[tuple[str, str]], tokens: Tokens) -> tuple[Tensor, Tensor]:
    """One question and its answer, as `pack` does it."""
    (_, question), (_, answer) = turns
    start, end = tokens.special(START), tokens.special(END)
    head = [start, *tokens.encode(f"user\n{question}"), end, *tokens.encode("\n"), start, *tokens.encode("assistant\n")]
    said = [*tokens.encode(answer), end]
    inputs = torch.tensor(head + said)
    targets = torch.tensor([NOTHING] * len(head) + said)
    return inputs[:-1], targets[1:]


if __name__ == "__main__":
    main()
