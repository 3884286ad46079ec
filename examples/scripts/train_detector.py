"""Trains the defect detector on drawn plates, writes models/detector/1/model.onnx and scores it.

    python examples/scripts/train_detector.py

One thread, about a quarter of an hour; needs torch, onnx, onnxruntime, numpy, opencv-python-headless and pillow. The
score on plates that the network never saw is taken through the very code that serves: the preprocess model's
letterbox, onnxruntime, the postprocess model's suppression.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

MODELS = Path(__file__).resolve().parent.parent / "models"
# The serving code itself, so that training cannot drift from what the server does to an image.
sys.path += [str(MODELS / "preprocess" / "1"), str(MODELS / "postprocess" / "1")]

from defects import CLASS_NAMES, Plate, draw_plate  # noqa: E402
from detections import Thresholds, detect  # noqa: E402
from detector_loss import detection_loss  # noqa: E402
from detector_network import DefectDetector, ExportedDetector  # noqa: E402
from detector_score import Score  # noqa: E402
from letterbox import PAD_VALUE, Letterbox  # noqa: E402
from muon import Muon  # noqa: E402
from normalise import normalise  # noqa: E402

TRAINING_SEED, HELD_OUT_SEED = 2, 1_000_003
BATCH = 8
_LINES = (CLASS_NAMES.index("scratch"), CLASS_NAMES.index("crack"))


@dataclass(frozen=True)
class Scene:
    """A plate on the detector's canvas: image [640, 640, 3] BGR, boxes [n, 4] corners in its pixels, classes [n]."""

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]


@dataclass(frozen=True)
class Phase:
    """A stretch of training on windows of `size` x `size` pixels."""

    size: int
    steps: int


# Windows cost a quarter of whole canvases and hold as much to learn from; the last steps see whole ones, because
# only there are the largest defects uncut and the borders where they are served.
PHASES = (Phase(size=320, steps=1500), Phase(size=640, steps=100))


def main() -> None:
    """Draw, train, export, score."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plates", type=int, default=1600, help="training plates to draw")
    arguments.add_argument("--held-out", type=int, default=300, help="plates to score on")
    arguments.add_argument("--output", type=Path, default=MODELS / "detector" / "1" / "model.onnx")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    torch.manual_seed(TRAINING_SEED)
    rng = np.random.default_rng(TRAINING_SEED)
    scenes = [on_canvas(draw_plate(rng)) for _ in range(options.plates)]
    export(train(scenes, rng), options.output)
    score(options.output, options.held_out)


def on_canvas(plate: Plate) -> Scene:
    """Letterbox a plate as the preprocess model does, and its boxes with it."""
    height, width = plate.image.shape[:2]
    letterbox = Letterbox.fit(width, height)
    scale = np.array((letterbox.scale_x, letterbox.scale_y) * 2, dtype=np.float32)
    offset = np.array((letterbox.left, letterbox.top) * 2, dtype=np.float32)
    return Scene(letterbox.place(plate.image), plate.boxes * scale + offset, plate.classes)


# -- training --------------------------------------------------------------------------------------------------


def train(scenes: list[Scene], rng: np.random.Generator) -> DefectDetector:
    """Train on `scenes`; the answer is the exponential average of the weights, which is steadier than the last."""
    detector = DefectDetector(len(CLASS_NAMES)).to(memory_format=torch.channels_last)
    average = AveragedModel(detector, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    optimizers = make_optimizers(detector)
    steps = sum(phase.steps for phase in PHASES)
    schedules = [LambdaLR(optimizer, lambda step: learning_rate(step / steps)) for optimizer in optimizers]
    started, smoothed = time.monotonic(), 0.0
    for step, (images, truth) in enumerate(batches(scenes, rng)):
        loss = detection_loss(detector(images), truth)
        detector.zero_grad()
        loss.backward()
        for stepping in (*optimizers, *schedules):
            stepping.step()
        average.update_parameters(detector)
        smoothed = float(loss.detach()) if step == 0 else 0.98 * smoothed + 0.02 * float(loss.detach())
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:5d}/{steps}  loss {smoothed:.3f}  {time.monotonic() - started:.0f} s", flush=True)
    trained = average.module
    assert isinstance(trained, DefectDetector)
    return trained.eval()


def make_optimizers(detector: DefectDetector) -> tuple[Muon, torch.optim.AdamW]:
    """Muon for the convolutions inside, AdamW for the heads and all parameters that are not matrices."""
    heads = set(detector.heads.parameters())
    inner = [weight for weight in detector.parameters() if weight.ndim == 4 and weight not in heads]
    rest = [weight for weight in detector.parameters() if weight.ndim != 4 or weight in heads]
    return Muon(inner, lr=0.02), torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.99))


def learning_rate(progress: float) -> float:
    """The share of the full rate at `progress` 0..1: a short rise, then a straight fall to nothing."""
    return min(progress / 0.05, (1 - progress) / 0.95)


def batches(scenes: list[Scene], rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Images [BATCH, 3, size, size], normalised, and their truth [n, 6] as `detection_loss` wants it."""
    for phase in PHASES:
        for _ in range(phase.steps):
            chosen = rng.integers(len(scenes), size=BATCH)
            windows = [augment(cut_window(scenes[index], phase.size, rng), rng) for index in chosen]
            yield to_tensor(windows), collect_truth(windows)


def cut_window(scene: Scene, size: int, rng: np.random.Generator) -> Scene:
    """A random square of the canvas, and the defects that lie in it whole.

    A defect that the border cuts is painted over: the box of half a scratch is not half its box.
    """
    spare = scene.image.shape[0] - size
    if spare == 0:
        return scene
    left, top = choose_corner(scene, size, spare, rng)
    boxes = scene.boxes - np.array((left, top, left, top), dtype=np.float32)
    image = scene.image[top : top + size, left : left + size].copy()
    inside = (boxes[:, :2] >= 0).all(axis=1) & (boxes[:, 2:] <= size).all(axis=1)
    for x1, y1, x2, y2 in np.clip(boxes[~inside], 0, size).round().astype(int):
        image[y1:y2, x1:x2] = PAD_VALUE
    return Scene(image, boxes[inside], scene.classes[inside])


def choose_corner(scene: Scene, size: int, spare: int, rng: np.random.Generator) -> tuple[int, int]:
    """Left and top of a window: mostly one that shows some defect whole, else anywhere."""
    low, high = np.zeros(2), np.full(2, spare)
    if len(scene.boxes) and rng.random() < 0.75:
        box = scene.boxes[rng.choice(len(scene.boxes), p=_attention(scene.classes))]
        around = np.maximum(low, np.ceil(box[2:] - size)), np.minimum(high, np.floor(box[:2]))
        if np.all(around[0] <= around[1]):
            low, high = around
    left, top = rng.integers(low.astype(int), high.astype(int) + 1)
    return int(left), int(top)


def _attention(classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lines are harder than blots, so windows show them more often."""
    weights = np.where(np.isin(classes, _LINES), 2.0, 1.0)
    return np.asarray(weights / weights.sum())


def augment(scene: Scene, rng: np.random.Generator) -> Scene:
    """Mirrored on either axis, turned by a right angle, brighter or darker."""
    image, boxes = scene.image, scene.boxes
    size = image.shape[0]
    if rng.random() < 0.5:
        image, boxes = image[:, ::-1], np.stack((size - boxes[:, 2], boxes[:, 1], size - boxes[:, 0], boxes[:, 3]), 1)
    if rng.random() < 0.5:
        image, boxes = image[::-1], np.stack((boxes[:, 0], size - boxes[:, 3], boxes[:, 2], size - boxes[:, 1]), 1)
    if rng.random() < 0.5:
        image, boxes = image.transpose(1, 0, 2), boxes[:, (1, 0, 3, 2)]
    lit = cv2.convertScaleAbs(np.ascontiguousarray(image), alpha=rng.uniform(0.75, 1.25), beta=rng.uniform(0, 15))
    return Scene(np.asarray(lit, dtype=np.uint8), boxes, scene.classes)


def to_tensor(windows: list[Scene]) -> Tensor:
    """The images as the server feeds them."""
    size = windows[0].image.shape[0]
    images = np.empty((len(windows), 3, size, size), dtype=np.float32)
    for window, out in zip(windows, images, strict=True):
        normalise(window.image, out)
    return torch.from_numpy(images).contiguous(memory_format=torch.channels_last)


def collect_truth(windows: list[Scene]) -> Tensor:
    """All boxes of a batch as rows image index, class, centre x, centre y, width, height."""
    rows = [
        np.column_stack(
            (
                np.full(len(window.boxes), index),
                window.classes,
                (window.boxes[:, :2] + window.boxes[:, 2:]) / 2,
                window.boxes[:, 2:] - window.boxes[:, :2],
            )
        )
        for index, window in enumerate(windows)
    ]
    return torch.from_numpy(np.concatenate(rows).astype(np.float32))


# -- what is served ----------------------------------------------------------------------------------------------


def export(detector: DefectDetector, path: Path) -> None:
    """Write the ONNX file: input `images` [batch, 3, 640, 640], output `output` [batch, 25200, 85]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        ExportedDetector(detector).eval(),
        (torch.zeros(1, 3, 640, 640),),
        str(path),
        input_names=["images"],
        output_names=["output"],
        dynamic_axes={"images": {0: "batch"}, "output": {0: "batch"}},
        opset_version=17,
        dynamo=False,  # the newer exporter needs onnxscript, and this graph needs nothing of it
    )
    onnx.checker.check_model(str(path))


def score(path: Path, plates: int) -> None:
    """Print precision and recall at IoU 0.5 on `plates` plates of another seed, in pixels of the originals."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(HELD_OUT_SEED)
    overall = Score()
    by_class = [Score() for _ in CLASS_NAMES]
    for _ in range(plates):
        plate = draw_plate(rng)
        height, width = plate.image.shape[:2]
        letterbox = Letterbox.fit(width, height)
        image = np.empty((1, 3, 640, 640), dtype=np.float32)
        normalise(letterbox.place(plate.image), image[0])
        rows = session.run(None, {"images": image})[0][0]
        detections = detect(rows, letterbox.as_tensor(), np.array((height, width), dtype=np.int32), Thresholds())
        overall.add(detections.boxes, detections.class_ids, plate.boxes, plate.classes)
        for class_id, score_of_class in enumerate(by_class):
            mine, drawn = detections.class_ids == class_id, plate.classes == class_id
            score_of_class.add(
                detections.boxes[mine], detections.class_ids[mine], plate.boxes[drawn], plate.classes[drawn]
            )
    for name, result in zip((*CLASS_NAMES, "all"), (*by_class, overall), strict=True):
        print(f"{name:8s} precision {result.precision:.3f}  recall {result.recall:.3f}  ({result.drawn} drawn)")


if __name__ == "__main__":
    main()
