"""Frames of logs: damage costs only itself, and the work is proportional to the bytes."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import DataLossError
from nbdist.metrics import framing
from nbdist.metrics.framing import DOUBT, HEAD, LogFormat
from nbdist.metrics.log import FORMAT as METRICS
from nbdist.metrics.log import MAGIC, POINTS, parse, read_log
from nbdist.sweep import event_log

SMALL = LogFormat("example", 2, b"NBX2", 1 << 20)
payloads = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=8)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each checksum."""
    counted: list[int] = []

    def counting(data: bytes, value: int = 0) -> int:
        counted.append(len(data))
        return zlib.crc32(data, value)

    monkeypatch.setattr(framing, "crc32", counting)
    return counted


@given(payloads)
def test_what_is_framed_is_read_again(frames: list[tuple[int, bytes]]) -> None:
    data = b"".join(SMALL.frame(*one) for one in frames)
    reading = SMALL.frames(data)
    assert list(reading) == frames
    assert (reading.offset, reading.damaged, reading.torn) == (len(data), 0, 0)


@given(payloads, st.data())
def test_a_damaged_frame_loses_itself_only(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    frames = [(1, b"first"), *frames, (2, b"last")]
    pieces = [SMALL.frame(*one) for one in frames]
    hit = data.draw(st.integers(0, len(pieces) - 2))
    broken = bytearray(pieces[hit])
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    reading = SMALL.frames(b"".join([*pieces[:hit], bytes(broken), *pieces[hit + 1 :]]))
    assert list(reading) == frames[:hit] + frames[hit + 1 :]
    assert (reading.damaged, reading.torn) == (len(broken), 0)


@given(payloads, st.binary(max_size=300))
def test_rubbish_is_damage_or_torn_and_nothing_else(frames: list[tuple[int, bytes]], rubbish: bytes) -> None:
    data = b"".join(SMALL.frame(*one) for one in frames) + rubbish
    reading = SMALL.frames(data)
    assert list(reading)[: len(frames)] == frames
    assert reading.offset + reading.torn == len(data)


@pytest.mark.parametrize("format", [METRICS, event_log.FORMAT, SMALL])
def test_a_mark_and_zeros_are_no_frame(format: LogFormat) -> None:
    frame = format.frame(2, b"after")
    reading = format.frames(format.mark + bytes(100) + frame)
    assert list(reading) == [(2, b"after")]
    assert reading.damaged == 104


def test_a_metrics_log_that_ends_in_zeros_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "metrics-0000.log"
    path.write_bytes(MAGIC + METRICS.frame(0, b'{"replica": 3}') + METRICS.mark + bytes(4000))
    log = read_log(path)
    assert (log.replica, log.torn, len(log.points)) == (3, 4004, 0)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (0, b""), (0, b"{}"), (0, b"[]"), (0, b"[" * 100_000), (0, b'{"replica": -1}'),
        (0, b'{"replica": 1e400}'), (0, b'{"replica": "0"}'), (0, b'{"replica": 65536}'),
        (1, b"\0\0\xff\xff"), (POINTS, b"12345"),
    ],
)  # fmt: skip
def test_a_valid_frame_without_valid_content_counts_as_damage(kind: int, payload: bytes) -> None:
    frame = METRICS.frame(kind, payload)
    log = parse(frame + METRICS.frame(0, b'{"replica": 3}'))
    assert (log.replica, log.damaged) == (3, len(frame))


def hostile(shape: str) -> bytes:
    """A quarter of a megabyte of what made a reader hash each byte thousands of times."""
    size, largest = 1 << 18, METRICS.largest
    bad = bytearray(METRICS.frame(POINTS, b"12345678"))
    bad[-1] ^= 1
    header = framing._HEADER.pack(METRICS.mark, POINTS, size // 2, 0)
    sealed = header + framing._CHECK.pack(zlib.crc32(header, framing.SEED))
    beyond = framing._HEADER.pack(METRICS.mark, POINTS, largest, 0)
    pieces = {
        "marks": METRICS.mark,
        "unsealed lengths": header + bytes(4),
        "sealed lengths": sealed,
        "lengths beyond the end": beyond + framing._CHECK.pack(zlib.crc32(beyond, framing.SEED)),
        "damaged payloads": bytes(bad),
        "old frames": b"NBMF" + header[4:],
        "zeros": bytes(64),
    }
    piece = random.Random(3).randbytes(64) if shape == "noise" else pieces[shape]
    return piece * (size // len(piece))


@pytest.mark.parametrize(
    "shape",
    ["marks", "unsealed lengths", "sealed lengths", "lengths beyond the end", "damaged payloads",
     "old frames", "zeros", "noise"],
)  # fmt: skip
def test_bytes_are_hashed_in_proportion_to_the_log(shape: str, hashed: list[int]) -> None:
    data = hostile(shape)
    parse(data)
    # At most the 13 bytes of a header at each mark of 4 bytes, and each byte of a payload once.
    assert sum(hashed) <= 5 * len(data)
    hashed.clear()
    event_log.parse(data.replace(METRICS.mark, event_log.FORMAT.mark))
    assert sum(hashed) <= 5 * len(data)


def test_a_long_stretch_without_a_header_is_not_waited_for() -> None:
    frames = METRICS.frames(METRICS.mark * (DOUBT // 2))
    assert list(frames) == []
    assert frames.torn == HEAD


@pytest.mark.parametrize("flip", range(len(MAGIC)))
def test_a_damaged_first_line_loses_nothing_else(tmp_path: Path, flip: int) -> None:
    data = bytearray(MAGIC + METRICS.frame(0, b'{"replica": 3}'))
    data[flip] ^= 0x04
    path = tmp_path / "metrics-0000.log"
    path.write_bytes(data)
    log = read_log(path)
    assert (log.replica, log.damaged, log.torn) == (3, len(MAGIC), 0)


def test_a_log_of_an_older_version_is_refused_with_its_version(tmp_path: Path) -> None:
    path = tmp_path / "metrics-0000.log"
    path.write_bytes(b"nbdist metrics 1\nNBMF" + bytes(50))
    with pytest.raises(DataLossError, match=r"metrics-0000\.log has format 1 .* reads format 2"):
        read_log(path)
    path.write_bytes(b"nbdist sweep 1\nNBMF" + bytes(50))
    with pytest.raises(DataLossError, match="has format 1 of nbdist's sweep logs"):
        event_log.read_events(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics-0000.log"
    path.write_bytes(event_log.MAGIC + event_log.FORMAT.frame(16, b"{}"))
    with pytest.raises(
        DataLossError, match="is not a metrics log of nbdist: it starts with b'nbdist sweep 2"
    ):
        read_log(path)
