"""CRC-32C, the checksum of TFRecord files. Runs wherever its reader runs.

The polynomial is Castagnoli's, as in iSCSI (RFC 3720, 12.1 and B.4). The checksum is linear: data are cut into rows
of equal length whose registers advance together, a byte of each row at a time, and are then joined pair by pair, the
first one of each pair advanced by as many zeros as the second has bytes. So numpy does the work: 100 MB/s or so,
where a loop does 10.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

__all__ = ["crc32c", "masked_crc32c"]

_POLYNOMIAL = 0x82F63B78  # reflected
_SHORT = 2048  # bytes; below, the loop is quicker
_ALL = 0xFFFFFFFF


def _byte_table() -> Any:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _byte_table()
_LIST = [int(value) for value in _TABLE]


def crc32c(data: bytes) -> int:
    """The checksum of ``data``, a number of 32 bits."""
    return _by_rows(data) if len(data) >= _SHORT else _by_bytes(data)


def masked_crc32c(data: bytes) -> int:
    """As TFRecord files hold it: rotated right by 15 bits, and a constant added (TensorFlow's
    core/lib/hash/crc32c.h)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _ALL


def _by_bytes(data: bytes) -> int:
    table, register = _LIST, _ALL
    for byte in data:
        register = table[(register ^ byte) & 255] ^ register >> 8
    return register ^ _ALL


def _by_rows(data: bytes) -> int:
    power = (len(data).bit_length() + 1) // 2 - 2  # rows of 2 ** power bytes
    width = 1 << power
    rows = 1 << (-(-len(data) // width) - 1).bit_length()
    padded = np.zeros(rows * width, np.uint8)  # zeros before the data leave a register of zero as it is
    first = len(padded) - len(data)
    padded[first:] = np.frombuffer(data, np.uint8)
    padded[first : first + 4] ^= 255  # what a register that begins with all ones does
    registers = np.zeros(rows, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(rows, width).T):
        registers = _TABLE[(registers & 255) ^ column] ^ registers >> 8
    while len(registers) > 1:
        registers = _advance(registers[0::2], _past_zeros(power)) ^ registers[1::2]
        power += 1
    return int(registers[0]) ^ _ALL


@functools.cache
def _past_zeros(power: int) -> Any:
    """For each byte of a register, the table of what it becomes after 2 ** power zeros."""
    if power == 0:
        bits = np.arange(256, dtype=np.uint32)
        return np.stack([_TABLE[(bits << 8 * place) & 255] ^ (bits << 8 * place) >> 8 for place in range(4)])
    half = _past_zeros(power - 1)
    return np.stack([_advance(table, half) for table in half])


def _advance(registers: Any, tables: Any) -> Any:
    parts = [tables[place][(registers >> 8 * place) & 255] for place in range(4)]
    return parts[0] ^ parts[1] ^ parts[2] ^ parts[3]
