"""Figures for dark pages: those of `make docs` with light and dark exchanged, hues kept."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

BLACK, WHITE = 0.955, 0.246  # lightness of black ink and of white paper on a dark page
BEND = 0.75  # below 1: colours between them become lighter
TINT = np.array([0.0, -0.001, -0.014])  # what the page's dark has of green and blue

# Björn Ottosson's Oklab (2020), in which colours of one lightness look equally light.
_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
_IMAGE = re.compile(r'<img ([^>]*?)src="([^"]*images/[^"]+)\.png"([^>]*)>')


def dark(image: Path) -> bytes:
    """Return a PNG of an image's colours with their lightness turned round."""
    with Image.open(image) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    colours, index = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    turned = _turned(colours / 255.0)
    result = Image.fromarray(turned[index.reshape(pixels.shape[:2])])
    written = io.BytesIO()
    result.save(written, "png")
    return written.getvalue()


def _turned(colours: np.ndarray) -> np.ndarray:
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    lab = np.cbrt(linear @ _TO_CONES.T) @ _TO_LAB.T
    light = np.clip(lab[:, :1], 0.0, 1.0)
    lab[:, :1] = WHITE + (BLACK - WHITE) * (1 - light) ** BEND
    lab += light * TINT
    linear = (lab @ np.linalg.inv(_TO_LAB).T) ** 3 @ np.linalg.inv(_TO_CONES).T
    linear = np.clip(linear, 0.0, 1.0)
    back = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(255 * back).astype(np.uint8)


def both(content: str) -> str:
    """Return a page's HTML with two images for each figure, of which one is shown."""
    pair = r'<img \1src="\2.png#only-light"\3><img \1src="\2-dark.png#only-dark"\3>'
    return _IMAGE.sub(pair, content)
