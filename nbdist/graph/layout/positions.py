"""Horizontal positions of ordered rows: the least-squares solution that keeps the order.

Row by row, down and up, the target of each element is the place where its links are straight. The nearest
places in order, for a whole row, are an isotonic regression (pool adjacent violators).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from nbdist.graph.layout.layered import LayerRows, LineSegment

SWEEPS = 6


def centres(rows: LayerRows, links: Sequence[LineSegment], width: Mapping[int, float]) -> dict[int, float]:
    """Return the x of each element's centre: in order, without overlap, with nearly straight links."""
    above: dict[int, list[tuple[int, float, float]]] = {}
    below: dict[int, list[tuple[int, float, float]]] = {}
    for upper, lower, weight, shift in links:
        above.setdefault(lower, []).append((upper, weight, shift))
        below.setdefault(upper, []).append((lower, weight, -shift))
    offsets = [_offsets(row, width) for row in rows]
    x = {
        element: at - line[-1] / 2
        for row, line in zip(rows, offsets, strict=True)
        for element, at in zip(row, line)
    }
    for sweep in range(SWEEPS + 2):
        down, last = sweep % 2 == 0, sweep >= SWEEPS
        for number in range(len(rows)) if down else reversed(range(len(rows))):
            row = rows[number]
            wanted, weights = [], []
            for element in row:
                near = above.get(element, ()) if down else below.get(element, ())
                if last:
                    near = (*above.get(element, ()), *below.get(element, ()))
                weight = sum(w for _, w, _ in near)
                wanted.append(
                    sum(w * (x[other] + shift) for other, w, shift in near) / weight if near else x[element]
                )
                weights.append(weight if near else 0.1)
            x |= dict(zip(row, settled(wanted, weights, offsets[number])))
    return x


def _offsets(row: Sequence[int], width: Mapping[int, float]) -> list[float]:
    """Return the centres of a row's elements, each as far left as possible."""
    steps = ((width[a] + width[b]) / 2 for a, b in pairwise(row))
    return list(accumulate(steps, initial=0.0))


def settled(wanted: Sequence[float], weights: Sequence[float], offsets: Sequence[float]) -> list[float]:
    """Return the places nearest to the targets (least squares) that are as far apart as the offsets.

    >>> settled([0, 0, 10], [1, 1, 1], [0, 4, 8])
    [-2.0, 2.0, 10.0]
    """
    blocks: list[tuple[float, float, int]] = []  # mean of target - offset, weight, count
    for target, weight, offset in zip(wanted, weights, offsets):
        mean, count = float(target - offset), 1
        while blocks and blocks[-1][0] > mean:
            other, heavy, many = blocks.pop()
            mean = (mean * weight + other * heavy) / (weight + heavy)
            weight, count = weight + heavy, count + many
        blocks.append((mean, weight, count))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets)]
