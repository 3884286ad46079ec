"""Sends image files to the `detect` pipeline and shows what it found.

    python examples/clients/detect.py examples/images/plate.jpg --out annotated.jpg

Needs tritonclient[http], numpy and, for `--out`, opencv-python-headless.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton


def detect(client: triton.InferenceServerClient, images: list[bytes], model: str = "detect") -> list[list[Any]]:
    """The defects in each of up to eight images, given as the bytes of JPEG, PNG, BMP or WebP files.

    A defect is a dict of `bbox` (x1, y1, x2, y2 in pixels of the upright image), `confidence`, `class_id` and
    `class_name`. Raises tritonclient's InferenceServerException when the server refuses.
    """
    raw = triton.InferInput("RAW_IMAGE", [len(images), 1], "BYTES")
    raw.set_data_from_numpy(np.array(images, dtype=np.object_).reshape(-1, 1))
    results = client.infer(model, [raw]).as_numpy("DETECTION_RESULTS")
    return [json.loads(result) for result in results.reshape(-1)]


def annotate(image: bytes, defects: list[Any]) -> bytes:
    """The picture as a JPEG with a labelled box around each defect."""
    import cv2

    # IMREAD_COLOR turns the picture as its EXIF orientation says, and so does the server.
    picture = np.asarray(cv2.imdecode(np.frombuffer(image, dtype=np.uint8), cv2.IMREAD_COLOR))
    for defect in defects:
        left, top, right, bottom = (round(side) for side in defect["bbox"])
        label = f"{defect['class_name']} {defect['confidence']:.2f}"
        cv2.rectangle(picture, (left, top), (right, bottom), (40, 40, 230), 2)
        cv2.putText(picture, label, (left, max(16, top - 6)), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (40, 40, 230), 2)
    return bytes(cv2.imencode(".jpg", picture)[1])


def main() -> int:
    """Print one line of JSON for each image; exit status 1 when the server refuses or cannot be reached."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("images", nargs="+", type=Path, help="image files, sent as one batch")
    arguments.add_argument("--url", default="localhost:8000", help="host:port of the server's HTTP endpoint")
    arguments.add_argument("--out", type=Path, help="write the first image with its boxes to this JPEG file")
    options = arguments.parse_args()
    images = [path.read_bytes() for path in options.images]
    try:
        with triton.InferenceServerClient(options.url) as client:
            detections = detect(client, images)
    except (triton.InferenceServerException, OSError) as error:
        print(f"detect at {options.url}: {error}", file=sys.stderr)
        return 1
    for path, defects in zip(options.images, detections, strict=True):
        print(json.dumps({"image": str(path), "defects": defects}))
    if options.out:
        options.out.write_bytes(annotate(images[0], detections[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
