"""What the detector is taught: which anchors answer for which defect, and how wrong they are."""

from __future__ import annotations

import torch
from detector_network import ANCHORS, STRIDES, decode_boxes
from torch import Tensor
from torch.nn import functional as F

_MAX_SIDE_RATIO = 2.2  # an anchor answers for boxes whose sides are at most this much longer or shorter
_BOX_WEIGHT = 3.0


def detection_loss(heads: list[Tensor], truth: Tensor) -> Tensor:
    """Scalar loss of raw `heads` against `truth` [n, 6]: image index, class, centre x, centre y, w, h (pixels).

    Sums over all anchors divided by the number of answering ones, so that the thousands of empty cells weigh
    as much as the few that hold a defect.
    """
    total, answering = heads[0].new_zeros(()), 0
    fits = match_anchors(truth)
    for level, raw in enumerate(heads):
        image, anchor, row, column, matched = _answering_cells(truth, fits[level], raw.shape, level)
        objectness = torch.zeros_like(raw[..., 4])
        if len(matched):
            answers = raw[image, anchor, row, column]
            boxes = decode_boxes(raw, level)[image, anchor, row, column]
            wanted = F.one_hot(matched[:, 1].long(), raw.shape[-1] - 5).to(raw)
            total = total + _BOX_WEIGHT * (1 - complete_iou(boxes, matched[:, 2:])).sum()
            total = total + F.binary_cross_entropy_with_logits(answers[:, 5:], wanted, reduction="sum")
            objectness[image, anchor, row, column] = 1.0
            answering += len(matched)
        total = total + F.binary_cross_entropy_with_logits(raw[..., 4], objectness, reduction="sum")
    return total / max(1, answering)


def match_anchors(truth: Tensor) -> Tensor:
    """Which anchors answer for which defect, BOOL [levels, 3, n]: those of like shape, and always the likest."""
    sizes = torch.tensor(ANCHORS, dtype=truth.dtype)
    ratio = truth[:, 4:] / sizes[:, :, None, :]
    unlikeness = torch.maximum(ratio, 1 / ratio).amax(dim=3)
    return (unlikeness < _MAX_SIDE_RATIO) | (unlikeness == unlikeness.amin(dim=(0, 1)))


def _answering_cells(
    truth: Tensor, fits: Tensor, shape: torch.Size, level: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The cell that holds a defect's centre and the two nearest to it, for each anchor of one level that fits.

    Returns image, anchor, row and column indices [m] and the defect's row of `truth` for each [m, 6].
    """
    rows, columns = shape[2:4]
    anchor, index = fits.nonzero(as_tuple=True)
    matched = truth[index]
    centre = matched[:, 2:4] / STRIDES[level]
    # Half a cell to the nearer side on each axis: the neighbour's decoding range reaches this centre too.
    side = torch.where(centre % 1 < 0.5, -1, 1)
    own = centre.floor().long()
    steps = torch.stack((torch.zeros_like(side), side * torch.tensor((1, 0)), side * torch.tensor((0, 1))))
    cells = (own[None] + steps).reshape(-1, 2)
    anchor, matched = anchor.repeat(3), matched.repeat(3, 1)
    inside = (cells >= 0).all(dim=1) & (cells[:, 0] < columns) & (cells[:, 1] < rows)
    cells, anchor, matched = cells[inside], anchor[inside], matched[inside]
    return matched[:, 0].long(), anchor, cells[:, 1], cells[:, 0], matched


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """CIoU of paired boxes [n, 4] as centre and size: overlap, less centre distance, less aspect mismatch [n].

    Zheng et al., "Enhancing Geometric Factors in Model Learning and Inference" (2020).
    """
    a_low, a_high = a[:, :2] - a[:, 2:] / 2, a[:, :2] + a[:, 2:] / 2
    b_low, b_high = b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
    overlap = (torch.minimum(a_high, b_high) - torch.maximum(a_low, b_low)).clamp(0).prod(dim=1)
    iou = overlap / (a[:, 2:].prod(dim=1) + b[:, 2:].prod(dim=1) - overlap + 1e-7)
    hull = torch.maximum(a_high, b_high) - torch.minimum(a_low, b_low)
    distance = (a[:, :2] - b[:, :2]).square().sum(dim=1) / (hull.square().sum(dim=1) + 1e-7)
    angle = torch.atan(b[:, 2] / b[:, 3]) - torch.atan(a[:, 2] / a[:, 3])
    aspect = 4 / torch.pi**2 * angle.square()
    with torch.no_grad():
        trade_off = aspect / (1 - iou + aspect + 1e-7)
    return iou - distance - trade_off * aspect
