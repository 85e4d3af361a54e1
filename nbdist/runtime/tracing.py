"""What a traced step did when, as spans of a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from nbdist.graph.device import DeviceSpec
from nbdist.graph.ops.sources import READS
from nbdist.graph.tensor import Tensor
from nbdist.metrics.timeline import Span

Mark: TypeAlias = tuple[Tensor, float, float]
"""A call of a program: what it computes, and when it began and ended, in seconds of time.perf_counter."""

EFFECTS = ("assign", "apply")  # what such an op's name begins with


def spans_of(device: str, step: int, marks: Iterable[Mark], arrived: Mapping[int, float]) -> list[Span]:
    """Return the spans of one device in a step; ``arrived`` says when the value of an edge was there."""
    spec = DeviceSpec.from_string(device)
    task, lane = f"/job:{spec.job}/task:{spec.task}", f"{spec.device_type}:{spec.device_index}"
    found = []
    for t, begun, ended in marks:
        if t.type in ("receive", "await"):
            there = min(max(arrived.get(t.attrs["edge"], ended), begun), ended)
            found.append(Span(task, lane, "wait", f"for {edge_name(t)}", begun, there - begun, step))
            found.append(Span(task, lane, "receive", edge_name(t), there, ended - there, step))
        elif t.type in ("send", "signal"):
            found.append(Span(task, lane, "send", edge_name(t), begun, ended - begun, step))
        else:
            kind = "data" if t.type in READS else "apply" if t.type.startswith(EFFECTS) else "compute"
            if t.op is not None and t.op.waits:
                kind = "wait"
            found.append(Span(task, lane, kind, t.name, begun, ended - begun, step))
    return found


def edge_name(t: Tensor) -> str:
    """Return what both ends of an edge call it: the value's name and the edge's number."""
    return f"{t.name.partition('^')[0]} #{t.attrs['edge']}"
