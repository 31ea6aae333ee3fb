"""Bytes <-> plain data, without pickle for plain data and versioned.

Runs in every process. Imports only ``errors``.

The container format is msgpack. What msgpack lacks (tuples, sets, big integers, tensors, arrays ...) are extensions
listed in ``_Ext``. Anything else is kept as an opaque pickle that :func:`decode` refuses unless ``allow_pickle=True``,
which is numpy's convention for ``.npy`` files.
"""

from __future__ import annotations

import enum
import io
import pickle
from typing import Any

import cloudpickle
import msgpack
import numpy as np
import torch
from torch.utils.data.datapipes.datapipe import DataChunk

from torchpipe.errors import StateError, UnsafeStateError

__all__ = ["FORMAT_VERSION", "OpaqueItem", "decode", "encode"]

FORMAT_VERSION = 1
_MAGIC = b"TPS"


class _Ext(enum.IntEnum):
    """Extension type codes: part of the format, never renumber."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    BIG_INT = 4
    TENSOR = 5
    ARRAY = 6
    SCALAR = 7
    OPAQUE = 8
    COMPLEX = 9
    BYTEARRAY = 10
    DATA_CHUNK = 11


class OpaqueItem:
    """What ``inspect`` shows for an item that only pickle could rebuild; it is never unpickled."""

    def __init__(self, type_name: str, size_bytes: int) -> None:
        self.type_name = type_name
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return f"<opaque {self.type_name}, {self.size_bytes} bytes>"


def _pack(value: Any) -> bytes:
    if _holds_bytearray(value):
        value = _mark_bytearrays(value)
    try:
        packed = msgpack.packb(value, default=_extend, strict_types=True, use_bin_type=True)
    except UnicodeEncodeError:  # names of files that are not UTF-8; not always, because it takes a slower path
        packed = msgpack.packb(
            value, default=_extend, strict_types=True, use_bin_type=True, unicode_errors="surrogatepass"
        )
    assert isinstance(packed, bytes)
    return packed


def _holds_bytearray(value: Any) -> bool:
    """Is there a bytearray in these lists and dicts? msgpack would make bytes of it, without asking ``_extend``."""
    if type(value) not in (list, dict):
        return type(value) is bytearray
    items = value if type(value) is list else value.values()
    kinds = set(map(type, items))
    return bytearray in kinds or ((list in kinds or dict in kinds) and any(map(_holds_bytearray, items)))


def _mark_bytearrays(value: Any) -> Any:
    if type(value) is list:
        return [_mark_bytearrays(item) for item in value]
    if type(value) is dict:
        return {key: _mark_bytearrays(item) for key, item in value.items()}
    return msgpack.ExtType(_Ext.BYTEARRAY, bytes(value)) if type(value) is bytearray else value


def _extend(value: Any) -> msgpack.ExtType:
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(_Ext.TUPLE, _pack(list(value)))
    if kind is set:
        return msgpack.ExtType(_Ext.SET, _pack(list(value)))
    if kind is frozenset:
        return msgpack.ExtType(_Ext.FROZENSET, _pack(list(value)))
    if kind is int:
        return msgpack.ExtType(_Ext.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if kind is torch.Tensor and _is_plain_tensor(value):
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return msgpack.ExtType(_Ext.TENSOR, _pack([str(value.dtype).removeprefix("torch."), list(value.shape), flat]))
    if kind is np.ndarray and value.dtype.kind in "biufcmMSUV" and value.dtype.names is None:
        return msgpack.ExtType(_Ext.ARRAY, _pack([value.dtype.str, list(value.shape), value.tobytes()]))
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmMSU":
        return msgpack.ExtType(_Ext.SCALAR, _pack([value.dtype.str, value.tobytes()]))
    if kind is complex:
        return msgpack.ExtType(_Ext.COMPLEX, _pack([value.real, value.imag]))
    if kind is DataChunk:
        return msgpack.ExtType(_Ext.DATA_CHUNK, _pack(list(value)))
    return msgpack.ExtType(_Ext.OPAQUE, _pack([f"{kind.__module__}.{kind.__qualname__}", _pickle(value)]))


def _is_plain_tensor(value: torch.Tensor) -> bool:
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.requires_grad
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
    )


def _pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # local classes and lambdas: cloudpickle knows more
        return bytes(cloudpickle.dumps(value, protocol=5))


def encode(value: Any) -> bytes:
    """Plain data -> bytes, an independent copy of ``value``.

    Kept exactly: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, batches
    (``DataChunk``), CPU tensors, numpy arrays and scalars, nested. Other objects are stored as opaque pickles.

    Raises: StateError when an object cannot even be pickled (an open file, say) or nests deeper than 500 levels.
    """
    try:
        return _MAGIC + bytes([FORMAT_VERSION]) + _pack(value)
    except Exception as error:
        raise StateError(
            f"a buffered item cannot be saved ({type(error).__name__}: {error}). Buffer plain data instead: put "
            "shuffle() or batch() before files are opened, or after they are read"
        ) from error


class _Decoder:
    def __init__(self, allow_pickle: bool, keep_opaque: bool) -> None:
        self._allow_pickle = allow_pickle
        self._keep_opaque = keep_opaque

    def unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(
            data,
            ext_hook=self._extension,
            strict_map_key=False,
            raw=False,
            unicode_errors="surrogatepass",
            max_str_len=len(data),
            max_bin_len=len(data),
            max_ext_len=len(data),
        )

    def _extension(self, code: int, data: bytes) -> Any:
        match code:
            case _Ext.TUPLE:
                return tuple(self.unpack(data))
            case _Ext.SET:
                return set(self.unpack(data))
            case _Ext.FROZENSET:
                return frozenset(self.unpack(data))
            case _Ext.BIG_INT:
                return int.from_bytes(data, "little", signed=True)
            case _Ext.TENSOR:
                name, shape, raw = self.unpack(data)
                dtype = getattr(torch, name)
                if not isinstance(dtype, torch.dtype):
                    raise ValueError(f"unknown tensor dtype {name!r}")
                if not raw:
                    return torch.empty(0, dtype=dtype).reshape(shape)  # fails if the shape is not that of nothing
                return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
            case _Ext.ARRAY:
                dtype_text, shape, raw = self.unpack(data)
                return np.frombuffer(bytearray(raw), dtype=_plain_dtype(dtype_text)).reshape(shape)
            case _Ext.SCALAR:
                dtype_text, raw = self.unpack(data)
                return np.frombuffer(raw, dtype=_plain_dtype(dtype_text))[0]
            case _Ext.COMPLEX:
                return complex(*self.unpack(data))
            case _Ext.BYTEARRAY:
                return bytearray(data)
            case _Ext.DATA_CHUNK:
                return DataChunk(self.unpack(data))
            case _Ext.OPAQUE:
                return self._opaque(*self.unpack(data))
            case _:
                raise ValueError(f"unknown extension type {code}")

    def _opaque(self, type_name: str, data: bytes) -> Any:
        if self._keep_opaque:
            return OpaqueItem(type_name, len(data))
        if not self._allow_pickle:
            raise UnsafeStateError(
                f"the state holds a buffered item of type {type_name}, which only pickle can rebuild, and unpickling "
                "runs code. If you trust where the state comes from, load it with allow_pickle=True"
            )
        return pickle.load(io.BytesIO(data))


def _plain_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.hasobject:
        raise ValueError(f"array dtype {text!r} would hold objects")
    return dtype


def decode(data: bytes, *, allow_pickle: bool = False, keep_opaque: bool = False) -> Any:
    """Bytes from :func:`encode` -> the data. Runs no code from ``data`` unless ``allow_pickle``.

    ``keep_opaque`` leaves an :class:`OpaqueItem` where an opaque pickle stands, for looking at a state.

    Raises: UnsafeStateError for opaque items without ``allow_pickle``; StateError for anything that is not a state.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise StateError(f"a state must be bytes, got {type(data).__name__}")
    data = bytes(data)
    if data[:3] != _MAGIC or len(data) < 5:
        raise StateError(f"not a torchpipe state: it begins with {data[:16]!r}. Was the file damaged or mixed up?")
    if data[3] != FORMAT_VERSION:
        raise StateError(
            f"the state has format version {data[3]}, this torchpipe reads version {FORMAT_VERSION}: "
            "load it with the version of torchpipe that wrote it"
        )
    try:
        return _Decoder(allow_pickle, keep_opaque).unpack(data[4:])
    except StateError:
        raise
    except Exception as error:
        raise StateError(
            f"the state's {len(data)} bytes are damaged ({type(error).__name__}: {error}). Use an older checkpoint"
        ) from error
