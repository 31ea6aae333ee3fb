"""Decoders by the ending of a file's name; packages are imported when they are used."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from torchpipe.compat.packages import needs

__all__ = ["IMAGES", "as_images", "by_ending", "check_images", "decoders", "picture"]

IMAGES = ("pil", "rgb8", "torchrgb8", None)
_IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "ppm", "pgm", "pbm", "pnm", "tif", "tiff")
_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
_NUMBER_ENDINGS = ("cls", "cls2", "class", "count", "index", "inx", "id")


def _text(content: bytes) -> str:
    return content.decode()


def _array(content: bytes) -> Any:
    return np.load(io.BytesIO(content), allow_pickle=False)


def _arrays(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(file)


def _tensors(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


def picture(content: bytes) -> Any:
    """Pillow's image of an encoded one, decoded. Raises: ImportError without Pillow, OSError for damaged ones."""
    Image = needs("PIL.Image", "decoding images (images=None leaves them as bytes)", "pillow")
    image = Image.open(io.BytesIO(content))
    image.load()  # a damaged file is an error here, not later
    return image


def _same(image: Any) -> Any:
    return image


def _rgb(image: Any) -> Any:
    if image.mode not in _EIGHT_BITS:  # Pillow would cut its levels off at 255
        raise ValueError(
            f"a picture of mode {image.mode} has more than the 8 bits that 'rgb8' and 'torchrgb8' hold: images='pil' "
            "hands it out as it is"
        )
    return np.array(image.convert("RGB"))


def _torch_rgb(image: Any) -> torch.Tensor:
    return torch.from_numpy(_rgb(image).transpose(2, 0, 1).copy())


_MADE: dict[str, Callable[[Any], Any]] = {"pil": _same, "rgb8": _rgb, "torchrgb8": _torch_rgb}


def as_images(images: str) -> Callable[[Any], Any]:
    """A function of Pillow's image: that, a uint8 array of (height, width, 3), a uint8 tensor of (3, height, width).
    These raise ValueError for one of 16 or 32 bits, or of floats."""
    return _MADE[images]


def check_images(images: str | None) -> str | None:
    """``images``. Raises: ValueError unless it is one of ``IMAGES``."""
    if images not in IMAGES:
        raise ValueError(f"images must be one of {', '.join(map(repr, IMAGES))}, got {images!r}")
    return images


def _decoded(images: str, content: bytes) -> Any:
    return _MADE[images](picture(content))


def by_ending(handlers: Mapping[str, Callable[[bytes], Any]]) -> dict[str, Callable[[bytes], Any]]:
    """The same, by endings as files are looked up by: in lower case, without a dot before them."""
    return {ending.lower().lstrip("."): function for ending, function in handlers.items()}


def decoders(images: str | None, handlers: Mapping[str, Callable[[bytes], Any]]) -> dict[str, Callable[[bytes], Any]]:
    """ending -> function of the content. Text, numbers, JSON, arrays and tensors (no pickles), and images as
    ``images`` says: Pillow's, uint8 arrays of (height, width, 3), uint8 tensors of (3, height, width), or bytes.
    ``handlers`` go before.
    """
    table: dict[str, Callable[[bytes], Any]] = {"json": json.loads, "jsn": json.loads, "npy": _array, "npz": _arrays}
    table |= dict.fromkeys(("txt", "text", "transcript"), _text)
    table |= dict.fromkeys(_NUMBER_ENDINGS, int)
    table |= dict.fromkeys(("pt", "pth"), _tensors)
    if images is not None:
        table |= dict.fromkeys(_IMAGE_ENDINGS, partial(_decoded, images))
    return table | by_ending(handlers)
