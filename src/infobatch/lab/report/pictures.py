"""Samples as pictures: pixel arrays in any usual layout, as PNGs embedded in the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

MAX_SIDE = 256  # a page with two dozen photographs must stay small


def data_uri(pixels: Any) -> str | None:
    """A ``data:`` URI of a picture, or None if the values are not a picture.

    Grey (H, W), or with 1, 3 or 4 channels last or first; bytes, floats from 0 to 1, or other
    values, which are rescaled by their range.
    """
    try:
        values = np.asarray(pixels, np.float64)
    except (TypeError, ValueError):
        return None
    if values.ndim == 3 and values.shape[2] not in (1, 3, 4) and values.shape[0] in (1, 3, 4):
        values = np.moveaxis(values, 0, 2)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if not values.size or not (
        values.ndim == 2 or (values.ndim == 3 and values.shape[2] in (3, 4))
    ):
        return None
    image = Image.fromarray(_as_bytes(values))
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"


def _as_bytes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    whole = bool((values == np.round(values)).all())
    if not (whole and low >= 0 and 1 < high <= 255):
        if not (low >= 0 and high <= 1):
            values = (values - low) / ((high - low) or 1.0)
        values = 255 * values
    return np.round(values).astype(np.uint8)
