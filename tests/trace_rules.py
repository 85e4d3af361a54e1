"""The rules of the Trace Event Format, as far as chrome://tracing and Perfetto rely on them, for tests.

Source: "Trace Event Format", Google: its sections on the JSON object format and on complete, flow and
metadata events. This module checks the format only, not that a viewer opens the trace.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

METADATA = {
    "process_name": ("name", str), "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str), "thread_sort_index": ("sort_index", int),
}  # fmt: skip
CLOSE = 0.0021  # µs: times are rounded to the nanosecond


def problems(trace: Any) -> list[str]:
    """Return the violated rules; an empty list if there are none."""
    try:
        trace = json.loads(json.dumps(trace, allow_nan=False))
    except (TypeError, ValueError) as error:
        return [f"not JSON: {error}"]
    found = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit is neither ms nor ns"]
    if not isinstance(trace.get("traceEvents"), list):
        return [*found, "traceEvents is not a list"]
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in trace["traceEvents"]:
        phase = event.get("ph")
        if not isinstance(event.get("name"), str):
            found.append(f"an event without a name: {event}")
        if not all(type(event.get(key)) is int for key in ("pid", "tid")):
            found.append(f"pid and tid are whole numbers: {event}")
            continue
        if phase == "M":
            key, kind = METADATA.get(event["name"], ("", object))
            if not isinstance(event.get("args", {}).get(key), kind):
                found.append(f"metadata without its argument: {event}")
            continue
        if not _is_time(event.get("ts")) or not isinstance(event.get("cat"), str):
            found.append(f"ts and cat are needed: {event}")
        elif phase == "X" and _is_time(event.get("dur")):
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif phase in ("s", "f"):
            if "id" not in event or (phase == "f" and event.get("bp") != "e"):
                found.append(f"a flow event has an id, and its end binds to the enclosing slice: {event}")
            if phase in flows[event.get("id")]:
                found.append(f"two flow events of one id and phase: {event}")
            flows[event.get("id")][phase] = event
        else:
            found.append(f"an unknown phase, or a slice without a duration: {event}")
    for number, ends in flows.items():
        if ends.keys() != {"s", "f"}:
            found.append(f"flow {number} has {sorted(ends)}")
        elif ends["f"]["ts"] < ends["s"]["ts"]:
            found.append(f"flow {number} ends before it begins")
        for end in ends.values():
            slices = lanes[end["pid"], end["tid"]]
            if not any(begin - CLOSE <= end["ts"] <= close + CLOSE for begin, close in slices):
                found.append(f"flow {number} hangs on no slice: {end}")
    for lane, slices in lanes.items():
        found += [f"slices of {lane} overlap and do not nest: {pair}" for pair in _crossing(slices)]
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _crossing(slices: list[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return pairs of slices of a thread that overlap without one being within the other."""
    crossing = []
    open_slices: list[tuple[float, float]] = []
    for begin, end in sorted(slices, key=lambda one: (one[0], -one[1])):
        while open_slices and open_slices[-1][1] <= begin + CLOSE:
            open_slices.pop()
        if open_slices and end > open_slices[-1][1] + CLOSE:
            crossing.append((open_slices[-1], (begin, end)))
        open_slices.append((begin, end))
    return crossing
