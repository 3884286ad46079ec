"""A small anchor-based detector whose output has the layout of an exported YOLOv5: [batch, 25200, 85]."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STRIDES = (8, 16, 32)
ANCHORS = (
    ((60, 58), (42, 95), (110, 42)),
    ((85, 85), (60, 160), (160, 60)),
    ((130, 130), (120, 220), (220, 120)),
)
"""Three (width, height) in input pixels for each stride."""

OUTPUT_COLUMNS = 85  # x, y, w, h, objectness and 80 classes: what a YOLOv5 post-processing expects


class DefectDetector(nn.Module):
    """Backbone to strides 8, 16 and 32, a top-down neck, one linear head a stride.

    `forward` gives the raw heads for training: three tensors [batch, 3, rows, columns, 5 + classes].
    """

    def __init__(self, class_count: int) -> None:
        super().__init__()
        self.columns = 5 + class_count
        # Widths are multiples of 16, in which onnxruntime convolves on CPUs. One wide step to a quarter of the
        # resolution costs half of two small ones, and lines still show.
        self.stem = _conv(3, 32, kernel=6, stride=4)
        self.stage8 = nn.Sequential(_conv(32, 48, stride=2), _Residual(48, 32))
        self.stage16 = nn.Sequential(_conv(48, 80, stride=2), _Residual(80, 48))
        self.stage32 = nn.Sequential(
            _conv(80, 128, stride=2), _Residual(128, 64), _Residual(128, 64, dilation=2), _Residual(128, 64, dilation=3)
        )
        self.narrow32 = _conv(128, 80, kernel=1)
        self.merge16 = _conv(160, 80, kernel=1)
        self.narrow16 = _conv(80, 48, kernel=1)
        self.merge8 = _conv(96, 48, kernel=1)
        self.refine = nn.ModuleList((_Residual(48, 32), _Residual(80, 48), _Residual(80, 48)))
        self.heads = nn.ModuleList(nn.Conv2d(width, 3 * self.columns, 1) for width in (48, 80, 80))
        self._start_from_few_objects()

    def forward(self, images: Tensor) -> list[Tensor]:
        level8 = self.stage8(self.stem(images))
        level16 = self.stage16(level8)
        level32 = self.narrow32(self.stage32(level16))
        level16 = self.merge16(torch.cat((level16, _enlarge(level32)), dim=1))
        level8 = self.merge8(torch.cat((level8, _enlarge(self.narrow16(level16))), dim=1))
        heads = []
        for level, refine, head in zip((level8, level16, level32), self.refine, self.heads, strict=True):
            raw = head(refine(level))
            rows, columns = raw.shape[2:]
            heads.append(raw.reshape(-1, 3, self.columns, rows, columns).permute(0, 1, 3, 4, 2))
        return heads

    def _start_from_few_objects(self) -> None:
        """Bias objectness towards "nothing here", or the first epochs only learn that boxes are rare."""
        for head in self.heads:
            bias = head.bias.detach().reshape(3, self.columns)
            bias[:, 4] = -6.0
            head.bias = nn.Parameter(bias.flatten())


class ExportedDetector(nn.Module):
    """The detector as it is served: boxes in input pixels, scores in 0..1, unused classes zero."""

    def __init__(self, detector: DefectDetector) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Tensor) -> Tensor:
        decoded = []
        for level, raw in enumerate(self.detector(images)):
            boxes = torch.cat((decode_boxes(raw, level), raw[..., 4:].sigmoid()), dim=-1)
            rows, columns = raw.shape[2:4]
            decoded.append(boxes.reshape(-1, 3 * rows * columns, self.detector.columns))
        # Padding after the fact, not 80 trained columns: the head stays a tenth of the size and time.
        return F.pad(torch.cat(decoded, dim=1), (0, OUTPUT_COLUMNS - self.detector.columns))


def decode_boxes(raw: Tensor, level: int) -> Tensor:
    """Raw head [batch, 3, rows, columns, ≥ 4] → boxes [..., 4] as centre x, centre y, width, height in pixels.

    The YOLOv5 form: a centre may leave its cell by half a cell, a side is at most four times its anchor.
    """
    rows, columns = raw.shape[2:4]
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    cells = torch.stack((x, y), dim=-1).to(raw)
    squashed = raw[..., :4].sigmoid()
    centres = (squashed[..., :2] * 2 - 0.5 + cells) * STRIDES[level]
    anchors = torch.tensor(ANCHORS[level]).to(raw).reshape(1, 3, 1, 1, 2)
    return torch.cat((centres, (squashed[..., 2:] * 2) ** 2 * anchors), dim=-1)


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class _Residual(nn.Module):
    def __init__(self, width: int, inner: int, dilation: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(width, inner, kernel=1), _conv(inner, width, dilation=dilation))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.body(x)
        return added


def _enlarge(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
