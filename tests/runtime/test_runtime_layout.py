"""Layouts: where variables lie in flat memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph.placement import round_robin
from nbdist.runtime.layout import ALIGNMENT, Layout
from nbdist.runtime.ps.mailbox import HEADER, SLOTS, Mailbox
from nbdist.wire.shm import Segment

variables = st.lists(
    st.tuples(
        st.text(max_size=5),
        st.lists(st.integers(0, 7), max_size=3).map(tuple),
        st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1", "<c16", ">f4"]),
    ),
    max_size=8,
)


@given(variables)
def test_views_never_overlap_and_are_aligned(wanted: list[Any]) -> None:
    layout = Layout.of(wanted)
    buffer = layout.buffer()
    assert layout.size % ALIGNMENT == 0
    assert not layout.size or buffer.ctypes.data % ALIGNMENT == 0
    assert len(buffer) == layout.size
    views = layout.views(buffer)
    marks = np.zeros(layout.size, np.uint8)
    for view, (_, shape, dtype) in zip(views, wanted, strict=True):
        assert view.shape == shape
        assert view.dtype == np.dtype(dtype)
        assert view.flags.c_contiguous
        assert view.flags.writeable
        if view.size:
            assert view.ctypes.data % ALIGNMENT == 0
            start = view.ctypes.data - buffer.ctypes.data
            marks[start : start + view.nbytes] += 1
    assert marks.max(initial=0) <= 1
    assert sum(v.nbytes for v in views) == marks.sum()


@given(variables)
def test_flat_arrays_cover_all_variables_of_their_dtype(wanted: list[Any]) -> None:
    layout = Layout.of(wanted)
    buffer = layout.buffer()
    flats = layout.flats(buffer)
    assert [flat.dtype.str for flat in flats] == list(dict.fromkeys(np.dtype(d).str for _, _, d in wanted))
    assert sum(flat.nbytes for flat in flats) == layout.size
    for flat in flats:
        flat[:] = 1
    for view in layout.views(buffer):
        assert (view == 1).all()


@given(variables)
def test_a_layout_survives_the_journey(wanted: list[Any]) -> None:
    layout = Layout.of(wanted)
    assert Layout.of(layout.to_wire()) == layout
    assert Layout.of(layout.to_wire()).digest() == layout.digest()


def test_other_names_shapes_and_dtypes_are_other_layouts() -> None:
    base = Layout.of([("w", (2, 3), "<f4"), ("b", (3,), "<f4")])
    for other in (
        [("w", (3, 2), "<f4"), ("b", (3,), "<f4")],
        [("v", (2, 3), "<f4"), ("b", (3,), "<f4")],
        [("w", (2, 3), "<f8"), ("b", (3,), "<f4")],
        [("b", (3,), "<f4"), ("w", (2, 3), "<f4")],
        [("w", (2, 3), "<f4")],
    ):
        assert Layout.of(other) != base
        assert Layout.of(other).digest() != base.digest()


def test_only_numbers_have_a_place() -> None:
    for dtype in ("O", "U3", "M8[s]"):
        with pytest.raises(InvalidArgumentError, match="expected numbers"):
            Layout.of([("w", (2,), dtype)])


def test_variables_go_round() -> None:
    assert round_robin(5, 2) == [0, 1, 0, 1, 0]
    assert round_robin(0, 3) == []
    assert round_robin(2, 5) == [0, 1]
    with pytest.raises(InvalidArgumentError, match="at least one task"):
        round_robin(3, 0)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_slots_of_a_mailbox_do_not_overlap(replicas: int) -> None:
    layout = Layout.of([("w", (5, 7), "<f4"), ("n", (3,), "<i8")])
    with Segment.create("nbdist-testbox", Mailbox.size(layout, replicas)) as segment:
        mailbox = Mailbox(segment, layout, replicas)
        parts = [mailbox.counters, mailbox.parameters]
        for replica in range(replicas):
            parts += [*mailbox.headers[replica], *mailbox.gradients[replica]]
            assert len(mailbox.headers[replica]) == len(mailbox.gradients[replica]) == SLOTS
        for number, part in enumerate(parts, 1):
            assert part.ctypes.data % ALIGNMENT == 0
            assert not part.any()
            part[:] = number
        for number, part in enumerate(parts, 1):
            assert (part == number).all()
        assert sum(part.nbytes for part in parts) == len(segment.bytes)
        assert all(len(header) == HEADER for headers in mailbox.headers for header in headers)
        other = Mailbox(Segment.open(segment.name), layout, replicas)
        np.testing.assert_array_equal(other.gradients[-1][-1], mailbox.gradients[-1][-1])
