"""The bytes of a sample's files, by their endings: the other way round of ``decoding``, which gives equal values.

Packages are imported when they are used.
"""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["encode_file", "json_text"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_WITH_LOSS = ("jpg", "jpeg", "webp", "gif", "bmp", "ppm", "pgm", "pbm", "pnm", "tif", "tiff")


def json_text(value: Any) -> bytes:
    """``value`` as JSON, in UTF-8, which reads back as an equal value, tuples as lists. numpy's numbers are numbers.

    Raises: TypeError, ValueError for what JSON has no form for.
    """
    _check_keys(value)
    try:
        return json.dumps(value, default=_number, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a text is no Unicode ({error}): decode bytes with errors='replace'") from error
    except RecursionError as error:
        raise ValueError("a value that holds itself, or is nested too deep, is no JSON") from error


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"JSON has texts as keys alone, got {wrong[0]!r:.80}: it would come back as a text")
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for each in value:
        if isinstance(each, dict | list | tuple):
            _check_keys(each)


def _number(value: Any) -> Any:
    if isinstance(value, np.generic) and isinstance(plain := value.item(), bool | int | float):
        return plain
    raise TypeError(
        f"JSON has no form for {type(value).__name__}, got {value!r:.80}: it holds texts, numbers, lists and dicts. "
        "Make it one of these in the graph (of arrays and tensors, .tolist())"
    )


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"it holds text, and got {_shown(value)}")
    return value.encode()


def _count(value: Any) -> bytes:
    try:
        return str(operator.index(value)).encode()
    except TypeError:
        raise TypeError(f"it holds a whole number, and got {_shown(value)}") from None


def _as_array(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic | torch.Tensor) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"it holds an array or a tensor, and got {_shown(value)}")
    try:
        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"numpy has no form for {_shown(value)} ({error}): name it .pt") from error


def _array(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, _as_array(value), allow_pickle=False)
    return buffer.getvalue()


def _arrays(value: Any) -> bytes:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"it holds a dict of arrays by name, and got {_shown(value)}")
    buffer = io.BytesIO()
    for each in (arrays := {name: _as_array(each) for name, each in value.items()}).values():
        if each.dtype.hasobject:
            raise ValueError("it holds no arrays of objects")
    try:
        np.savez(buffer, **arrays)
    except TypeError as error:
        raise ValueError(f"numpy cannot keep arrays by these names ({error}): choose others") from error
    buffer.seek(0)
    with np.load(buffer) as kept:
        if sorted(kept.files) != sorted(arrays) or any(name.endswith(".npy") for name in arrays):
            raise ValueError(f"numpy would keep arrays named {kept.files!r:.100} of {[*arrays]!r:.100}: choose others")
    return buffer.getvalue()


def _tensors(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(_own_tensors(value), buffer)
    return buffer.getvalue()


def _own_tensors(value: Any) -> Any:
    """The same of tensors that are no views of larger ones, of which the whole would be saved. Raises: TypeError."""
    if type(value) is dict:
        return {_own_tensors(key): _own_tensors(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_own_tensors, value))
    if type(value) is torch.Tensor:
        strided = value.layout is torch.strided
        if strided and value.untyped_storage().nbytes() > value.numel() * value.element_size():
            return value.detach().clone().requires_grad_(value.requires_grad)
        return value
    if type(value) not in _PLAIN:
        raise TypeError(f"it holds tensors, and dicts and lists of them, and got {_shown(value)}")
    return value


def _picture(value: Any) -> bytes:
    if not hasattr(value, "save") or not hasattr(value, "mode"):
        raise TypeError(f"it holds an image of Pillow's, or bytes, and got {_shown(value)}: see PIL.Image.fromarray")
    if getattr(value, "n_frames", 1) > 1:
        raise ValueError(f"it holds one picture, and {_shown(value)} has {value.n_frames}: choose one in the graph")
    buffer = io.BytesIO()
    try:
        value.save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise ValueError(f"PNG does not hold {_shown(value)} ({error}): convert it in the graph") from error
    return buffer.getvalue()


def _no_picture(value: Any) -> bytes:
    raise TypeError(
        f"it holds an encoded image as bytes, and got {_shown(value)}: encode it in the graph, where you say how much "
        "may be lost (image.save(buffer, 'JPEG', quality=95)), or name it .png, which loses nothing"
    )


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("json", "jsn"), json_text),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _count),
    **dict.fromkeys(_WITH_LOSS, _no_picture),
    **dict.fromkeys(("pt", "pth"), _tensors),
    "npy": _array,
    "npz": _arrays,
    "png": _picture,
}


def encode_file(ending: str, value: Any) -> Any:
    """The content of a file with this ending: bytes as they are, other values as ``read_webdataset`` decodes them.

    Raises: TypeError, ValueError for a value that such a file does not hold.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return value
    encode = _ENCODERS.get(ending) or _ENCODERS.get(ending.rpartition(".")[2])
    if encode is None:
        raise TypeError(
            f"it holds bytes, and got {_shown(value)}: encode it in the graph, or give it an ending that says what it "
            "is (txt, cls, json, npy, npz, pt, png)"
        )
    return encode(value)


def _shown(value: Any) -> str:
    return f"{value!r:.80} of type {type(value).__name__}"
