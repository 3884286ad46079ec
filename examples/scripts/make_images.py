"""Draws the sample images of examples/images and writes down where their defects are.

python examples/scripts/make_images.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from defects import CLASS_NAMES, draw_plate
from PIL import Image

IMAGES = Path(__file__).resolve().parent.parent / "images"
EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Sample:
    """An image to draw: `orientation` 6 stores it lying on its left side, with the EXIF tag that turns it upright."""

    file: str
    seed: int
    width: int
    height: int
    orientation: int = 1


SAMPLES = (
    Sample("plate.jpg", seed=509, width=960, height=640),
    Sample("plate_rotated.jpg", seed=59, width=540, height=900, orientation=6),
)


def main() -> None:
    """Write the samples, and their boxes in pixels of the upright images to ground_truth.json."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    truth = {sample.file: draw(sample) for sample in SAMPLES}
    (IMAGES / "ground_truth.json").write_text(json.dumps(truth, indent=2) + "\n")


def draw(sample: Sample) -> list[dict[str, object]]:
    """Write one sample and return its defects."""
    plate = draw_plate(np.random.default_rng(sample.seed), sample.width, sample.height)
    stored = np.rot90(plate.image) if sample.orientation == 6 else plate.image
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = sample.orientation
    Image.fromarray(np.ascontiguousarray(stored[:, :, ::-1])).save(IMAGES / sample.file, quality=88, exif=exif)
    return [
        {"bbox": [round(float(side), 1) for side in box], "class_name": CLASS_NAMES[class_id]}
        for box, class_id in zip(plate.boxes, plate.classes, strict=True)
    ]


if __name__ == "__main__":
    main()
