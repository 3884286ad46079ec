"""Draws metal plates with defects, and knows where each defect lies.

Everything follows from the random generator passed in, so a seed names a data set. Sizes of defects are
relative to the longer side of the plate, because that is what the letterbox keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

CLASS_NAMES = ("scratch", "dent", "stain", "crack")

Canvas = NDArray[np.float32]
"""[height, width, 3] BGR, nominally 0..255, not yet clipped."""
Mask = NDArray[np.float32]
"""[height, width], 0..1: how much of a defect covers each pixel."""

# BGR: steel, aluminium, brass, anodised blue, dark iron, painted green.
_METALS = ((150, 148, 145), (196, 196, 194), (96, 152, 186), (150, 118, 84), (78, 76, 74), (112, 138, 104))
# BGR: rust, oil, lime, coolant.
_STAINS = ((28, 62, 122), (22, 26, 30), (226, 232, 234), (92, 118, 44))
_VISIBLE = 0.15  # a pixel belongs to the box when the defect covers it by this much
_MARGIN = 0.012  # an annotator leaves some air around a thin line: this share of the longer side


@dataclass(frozen=True)
class Plate:
    """An image [height, width, 3] BGR and its ground truth: boxes [n, 4] x1 y1 x2 y2 in pixels, classes [n]."""

    image: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]


def draw_plate(rng: np.random.Generator, width: int = 0, height: int = 0) -> Plate:
    """One plate with zero to four defects; the size is drawn too (320 to 1280 pixels) when it is not given."""
    if not (width and height):
        width, height = _draw_size(rng)
    canvas = _draw_metal(rng, width, height)
    for _ in range(rng.integers(0, 3)):
        _draw_fixture(rng, canvas)
    boxes: list[NDArray[np.float32]] = []
    classes: list[int] = []
    for _ in range(rng.choice(5, p=(0.08, 0.3, 0.32, 0.2, 0.1))):
        class_id = int(rng.integers(len(CLASS_NAMES)))
        box = _draw_apart(rng, canvas, _DRAWERS[class_id], boxes)
        if box is not None:
            boxes.append(box)
            classes.append(class_id)
    image = _photograph(rng, canvas)
    truth = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    return Plate(image, truth, np.array(classes, dtype=np.int64))


def _draw_size(rng: np.random.Generator) -> tuple[int, int]:
    longer = int(rng.integers(320, 1281))
    shorter = int(longer * rng.uniform(0.42, 1.0))
    return (longer, shorter) if rng.random() < 0.5 else (shorter, longer)


# -- the plate -----------------------------------------------------------------------------------------------


def _draw_metal(rng: np.random.Generator, width: int, height: int) -> Canvas:
    tint = np.array(_METALS[rng.integers(len(_METALS))]) * rng.uniform(0.85, 1.15) + rng.normal(0, 6, 3)
    relief = _brushed(rng, width, height) if rng.random() < 0.6 else _pebbled(rng, width, height)
    light = _light(rng, width, height)
    return (tint.astype(np.float32) + relief[:, :, None]) * light[:, :, None]


def _brushed(rng: np.random.Generator, width: int, height: int) -> Mask:
    noise = rng.standard_normal((height, width), dtype=np.float32)
    length = int(rng.integers(15, 60))
    kernel = (length, 1) if rng.random() < 0.5 else (1, length)
    return cv2.blur(noise, kernel) * np.float32(np.sqrt(length) * rng.uniform(2, 7))


def _pebbled(rng: np.random.Generator, width: int, height: int) -> Mask:
    grain = int(rng.integers(2, 7))
    coarse = rng.standard_normal((height // grain + 1, width // grain + 1), dtype=np.float32)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * np.float32(rng.uniform(2, 6))


def _light(rng: np.random.Generator, width: int, height: int) -> Mask:
    """A lamp somewhere over the plate: a soft bright spot and a linear fall-off."""
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :]
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle)
    spot = np.exp(-((x - rng.uniform(0, 1)) ** 2 + (y - rng.uniform(0, 1)) ** 2) / rng.uniform(0.1, 0.6))
    light = rng.uniform(0.7, 1.05) + rng.uniform(0, 0.35) * ramp + rng.uniform(0, 0.3) * spot
    return np.asarray(light, dtype=np.float32)


def _draw_fixture(rng: np.random.Generator, canvas: Canvas) -> None:
    """Marks of a plate that are not defects: a drilled hole, a stamped number, a straight seam."""
    height, width = canvas.shape[:2]
    unit = max(height, width)
    x, y = int(rng.integers(width)), int(rng.integers(height))
    kind = rng.integers(3)
    if kind == 0:
        radius = int(unit * rng.uniform(0.012, 0.035))
        cv2.circle(canvas, (x, y), radius + max(1, radius // 5), (215, 215, 215), -1, cv2.LINE_AA)
        cv2.circle(canvas, (x, y), radius, (30, 30, 32), -1, cv2.LINE_AA)
    elif kind == 1:
        ink = np.zeros((height, width), dtype=np.uint8)
        size = unit / 640 * rng.uniform(0.5, 1.0)
        number = str(rng.integers(1000, 99999))
        cv2.putText(ink, number, (x, y), cv2.FONT_HERSHEY_SIMPLEX, size, 255, 1, cv2.LINE_AA)
        canvas *= 1 - rng.uniform(0.5, 0.9) * ink[:, :, None].astype(np.float32) / 255
    else:
        thickness = max(1, round(unit / 250))
        ends = ((x, 0), (x, height)) if rng.random() < 0.5 else ((0, y), (width, y))
        cv2.line(canvas, ends[0], ends[1], (55, 55, 58), thickness, cv2.LINE_AA)


def _photograph(rng: np.random.Generator, canvas: Canvas) -> NDArray[np.uint8]:
    """What a camera makes of it: slight blur, sensor noise and JPEG compression."""
    if rng.random() < 0.4:
        cv2.GaussianBlur(canvas, (3, 3), rng.uniform(0.3, 0.8), dst=canvas)
    noise = rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(rng.uniform(0.5, 5))
    image = np.clip(canvas + noise, 0, 255).astype(np.uint8)
    _, encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(45, 96))])
    decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    return np.asarray(decoded, dtype=np.uint8)


# -- the defects: each draws onto the canvas and returns the mask of what it covered ----------------------------

Drawer = Callable[[np.random.Generator, Canvas, float, float, float], tuple[Canvas, Mask]]
"""(rng, canvas, centre x, centre y, longer side of the plate) -> the canvas with the defect, and its mask."""


def _draw_scratch(rng: np.random.Generator, canvas: Canvas, x: float, y: float, unit: float) -> tuple[Canvas, Mask]:
    """A bright, smooth, slightly bent line."""
    angle, length = rng.uniform(0, np.pi), unit * rng.uniform(0.1, 0.42)
    along = np.array((np.cos(angle), np.sin(angle))) * length / 2
    across = np.array((-along[1], along[0])) * rng.uniform(-0.35, 0.35)
    t = np.linspace(-1, 1, 24)[:, None]
    points = np.array((x, y)) + t * along + (1 - t**2) * across
    mask = _stroke(canvas, points, max(1, round(unit * rng.uniform(0.0016, 0.005))))
    shine = rng.uniform(60, 130)
    groove = np.roll(mask, 1, axis=0) * 0.35
    return canvas + (mask * shine - groove * shine)[:, :, None], mask


def _draw_crack(rng: np.random.Generator, canvas: Canvas, x: float, y: float, unit: float) -> tuple[Canvas, Mask]:
    """A dark jagged line, often with a branch."""
    angle, length = rng.uniform(0, 2 * np.pi), unit * rng.uniform(0.1, 0.34)
    width = max(1, round(unit * rng.uniform(0.002, 0.006)))
    trunk = _jagged(rng, np.array((x, y)) - 0.5 * length * np.array((np.cos(angle), np.sin(angle))), angle, length)
    mask = _stroke(canvas, trunk, width)
    for _ in range(rng.integers(0, 3)):
        start = trunk[rng.integers(len(trunk) // 4, len(trunk) - 2)]
        branch = _jagged(rng, start, angle + rng.choice((-1, 1)) * rng.uniform(0.5, 1.1), length * 0.35)
        mask = np.maximum(mask, _stroke(canvas, branch, max(1, width - 1)))
    return canvas * (1 - mask * rng.uniform(0.6, 0.9))[:, :, None], mask


def _draw_dent(rng: np.random.Generator, canvas: Canvas, x: float, y: float, unit: float) -> tuple[Canvas, Mask]:
    """A hollow: the plate's colour, one slope lit and the other in shadow."""
    u, v = _ellipse_axes(rng, canvas, x, y, unit * rng.uniform(0.03, 0.12), rng.uniform(0.6, 1.0))
    inside = np.clip(1 - u**2 - v**2, 0, 1)
    lamp = rng.uniform(0, 2 * np.pi)
    slope = (u * np.cos(lamp) + v * np.sin(lamp)) * inside
    shading = slope * rng.uniform(130, 240) - inside * rng.uniform(0, 20)
    return canvas + shading[:, :, None].astype(np.float32), inside.astype(np.float32)


def _draw_stain(rng: np.random.Generator, canvas: Canvas, x: float, y: float, unit: float) -> tuple[Canvas, Mask]:
    """A translucent blot with a ragged outline."""
    u, v = _ellipse_axes(rng, canvas, x, y, unit * rng.uniform(0.035, 0.13), rng.uniform(0.55, 1.0))
    bearing, outline = np.arctan2(v, u), np.ones_like(u)
    for harmonic in range(2, 7):
        outline += rng.uniform(0, 0.3) / harmonic * np.cos(harmonic * bearing + rng.uniform(0, 2 * np.pi))
    softness = rng.uniform(0.05, 0.15)
    mask = np.clip((outline - np.hypot(u, v)) / softness, 0, 1).astype(np.float32)
    colour = np.array(_STAINS[rng.integers(len(_STAINS))], dtype=np.float32)
    alpha = (mask * rng.uniform(0.35, 0.8))[:, :, None].astype(np.float32)
    return canvas * (1 - alpha) + colour * alpha, mask


_DRAWERS: tuple[Drawer, ...] = (_draw_scratch, _draw_dent, _draw_stain, _draw_crack)


def _jagged(rng: np.random.Generator, start: NDArray[np.float64], angle: float, length: float) -> NDArray[np.float64]:
    steps = int(rng.integers(8, 16))
    bearings = angle + rng.normal(0, 0.65, steps)
    legs = np.stack((np.cos(bearings), np.sin(bearings)), axis=1) * length / steps
    return np.asarray(start + np.cumsum(legs, axis=0))


def _stroke(canvas: Canvas, points: NDArray[np.float64], width: int) -> Mask:
    mask = np.zeros(canvas.shape[:2], dtype=np.uint8)
    cv2.polylines(mask, [np.round(points * 8).astype(np.int32)], False, 255, width, cv2.LINE_AA, shift=3)
    return mask.astype(np.float32) / np.float32(255)


def _ellipse_axes(
    rng: np.random.Generator, canvas: Canvas, x: float, y: float, radius: float, flatness: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Coordinates of every pixel in a turned ellipse whose border is at distance 1."""
    height, width = canvas.shape[:2]
    dy, dx = np.ogrid[0:height, 0:width]
    angle = rng.uniform(0, np.pi)
    u = ((dx - x) * np.cos(angle) + (dy - y) * np.sin(angle)) / radius
    v = ((dy - y) * np.cos(angle) - (dx - x) * np.sin(angle)) / (radius * flatness)
    return u.astype(np.float32), v.astype(np.float32)


# -- placing ---------------------------------------------------------------------------------------------------


def _draw_apart(
    rng: np.random.Generator, canvas: Canvas, drawer: Drawer, taken: list[NDArray[np.float32]]
) -> NDArray[np.float32] | None:
    """Draw one defect where it touches no other; None when eight tries found no room."""
    height, width = canvas.shape[:2]
    for _ in range(8):
        x, y = rng.uniform(0.06, 0.94) * width, rng.uniform(0.06, 0.94) * height
        drawn, mask = drawer(rng, canvas, x, y, max(height, width))
        box = _box_around(mask)
        if box is not None and not any(_touch(box, other) for other in taken):
            canvas[:] = drawn
            return box
    return None


def _box_around(mask: Mask) -> NDArray[np.float32] | None:
    height, width = mask.shape
    columns = np.flatnonzero(mask.max(axis=0) > _VISIBLE)
    rows = np.flatnonzero(mask.max(axis=1) > _VISIBLE)
    if not len(columns) or not len(rows):
        return None
    margin = _MARGIN * max(height, width)
    return np.array(
        (
            max(0, columns[0] - margin),
            max(0, rows[0] - margin),
            min(width, columns[-1] + 1 + margin),
            min(height, rows[-1] + 1 + margin),
        ),
        dtype=np.float32,
    )


def _touch(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return bool(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])
