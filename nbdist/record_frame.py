"""The frame of a record in TFRecord files and in TensorBoard's event files, which have one format.

    record = length u8, masked crc32c u4 of the length, data, masked crc32c u4 of the data   (little-endian)
    masked = the checksum rotated right by 15 bits, plus 0xa282ead8

Source: TensorFlow's record_writer.h. The checksum is google-crc32c's, in C: TensorBoard's own, in Python,
takes 12 ms for an image of 100 KB and keeps the interpreter's lock for that time.
"""

from __future__ import annotations

import struct

LENGTH, CHECK = struct.Struct("<QI"), struct.Struct("<I")


def framed(record: bytes | bytearray | memoryview) -> bytes:
    """Return a record with its length and checksums."""
    head = len(record).to_bytes(8, "little")
    data = bytes(record)
    return b"".join([head, CHECK.pack(masked_crc32c(head)), data, CHECK.pack(masked_crc32c(data))])


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C (Castagnoli) of bytes.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    from google_crc32c import value

    crc: int = value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
