"""The picture of a graph before it is drawn: what is shown, and that nothing is in the way of anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import matrix

from nbdist.graph.layout.collapse import OUTSIDE, Box, Plane, PlaneEdge, collapse, fold, scopes, walk
from nbdist.graph.layout.layered import LineSegment, crossings, flow_order, ordered, ranks
from nbdist.graph.layout.layout import lay_out
from nbdist.graph.layout.nodes import Node, describe
from nbdist.graph.layout.sheet import Sheet
from nbdist.graph.layout.stretch import Shown, Spread, spread
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph, control_dependencies, device, name_scope
from nbdist.graph.tensor import Variable, placeholder
from nbdist.ui.graph.marks import TextMeasure

LINKS = [LineSegment(0, 5), LineSegment(1, 4), LineSegment(2, 3)]
PS, FIRST, SECOND = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


class Blocks:
    """A measure that needs no font."""

    def box(self, box: Box) -> tuple[float, float]:
        return 40.0 + 6 * len(box.label), 44.0 if box.plane else 30.0

    def title(self, text: str) -> float:
        return 30.0 + 6 * len(text)

    def labels(self, source: Box, target: Box, edges: Sequence[PlaneEdge]) -> list[tuple[str, float]]:
        return [("a tensor", 60.0), ("t", 10.0)] if source.plane or source.device != target.device else []


def graph_of(choices: Sequence[tuple[int, int, list[int]]]) -> list[Node]:
    """Make a graph of choices: for each node a scope, a device, and how far back its inputs are."""
    names = ["", "a/", "a/b/", "c/", "a/b/d/", "gradients/a/"]
    nodes: list[Node] = []
    for number, (scope, place, back) in enumerate(choices):
        inputs = tuple(dict.fromkeys(nodes[-1 - far % len(nodes)].name for far in back)) if nodes else ()
        kind = "add" if inputs else ("Variable", "Placeholder", "Constant")[number % 3]
        name = f"{names[scope % len(names)]}n{number}"
        control = inputs[1:] if number % 5 == 0 else ()
        taken = tuple(one for one in inputs if one not in control)
        nodes.append(Node(name, kind, (PS, FIRST, SECOND)[place % 3], taken, control, (3,)))
    return nodes


CHOICES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.lists(st.integers(0, 40), max_size=3)),
    min_size=1, max_size=40,
)  # fmt: skip
OPEN = st.sampled_from([{}, {"depth": 0}, {"depth": 1}, {"depth": 9}, {"expand": ("a/b",)}])


def two_layers() -> Graph:
    graph = Graph()
    with graph.as_default():
        with device(PS), name_scope("hidden"):
            w = Variable(np.zeros((4, 3), np.float32), name="w")
        with device(FIRST):
            x = placeholder(np.float32, (None, 4), name="x")
            with name_scope("hidden"):
                np.tanh(x @ w * 0.5)
    return graph


# What a node says.


def test_nodes_say_what_tensors_are() -> None:
    nodes = {node.name: node for node in describe(two_layers())}
    w, x, product = nodes["hidden/w"], nodes["x"], nodes["hidden_1/matmul"]
    assert (w.type, w.device, w.shape, w.dtype, w.bytes) == ("Variable", PS, (4, 3), "float32", 48)
    assert (x.type, x.device, x.bytes, x.spec) == ("Placeholder", FIRST, None, "(?, 4) f32")
    assert product.inputs == ("x", "hidden/w")
    assert nodes["hidden_1/constant"].value == "0.5"


def test_a_placement_says_where_ops_are() -> None:
    full = f"{FIRST}/device:CPU:0"
    nodes = {node.name: node for node in describe(two_layers(), {"x": full})}
    assert nodes["x"].device == full
    assert nodes["hidden/w"].device == PS


def test_control_inputs_and_ops_without_a_value() -> None:
    graph = Graph()
    with graph.as_default():
        steps = Variable(np.int64(0), name="steps")
        with control_dependencies([steps.assign_add(np.int64(1))]):
            group(name="done")
    done = describe(graph)[-1]
    assert (done.name, done.control_inputs, done.spec, done.bytes) == ("done", ("steps/assign_add",), "", 0)


# What is shown.


def test_a_scope_is_one_box_with_its_ops() -> None:
    plane = collapse(describe(two_layers()), depth=0)
    shown = {box.label: (box.device, len(box.nodes), box.open) for box in plane.boxes}
    # A scope of one op on a device is that op.
    assert shown == {"hidden/w": (PS, 1, False), "x": (FIRST, 1, False), "hidden_1/": (FIRST, 4, False)}


def test_expand_opens_a_scope_and_those_around_it() -> None:
    nodes = [Node(name, "exp") for name in ("a/b/x", "a/b/y", "a/z", "c/x", "c/y")]
    states = {box.key: box.open for box in walk(collapse(nodes, expand=["a/b"]))}
    assert states == {"|a/": True, "|a/b/": True, "|a/b/x": False, "|a/b/y": False, "|a/z": False,
                      "|c/": False, "|c/x": False, "|c/y": False}  # fmt: skip
    assert [box.label for box in walk(collapse(nodes, depth=1)) if box.open] == ["a/", "c/"]


def test_a_scope_alone_on_its_device_is_open_unless_depth_says_no() -> None:
    nodes = [Node(f"replica/{name}", "exp", FIRST) for name in "xy"] + [Node("w", "Variable", PS)]
    assert [box.open for box in collapse(nodes).boxes] == [True, False]
    assert not any(box.open for box in collapse(nodes, depth=0).boxes)


def test_scopes_within_scopes_without_more_are_one_box() -> None:
    nodes = [Node("a/b/x", "exp"), Node("a/b/y", "exp"), Node("z", "exp")]
    assert [box.label for box in collapse(nodes).boxes] == ["a/b/", "z"]
    assert scopes(nodes) == ["a", "a/b"]
    assert collapse(nodes, expand=["a"]).boxes[0].open


def test_a_constant_is_folded_into_its_only_op() -> None:
    c, d = Node("c", "Constant", FIRST), Node("d", "Constant", SECOND)
    both = Node("both", "add", FIRST, ("c", "d"))
    assert fold([c, d, both]) == {"c": "both"}  # d is sent, and so seen
    assert fold([c, both, Node("other", "exp", FIRST, ("c",))]) == {}
    assert fold([c, Node("late", "exp", FIRST, (), ("c",))]) == {}


def test_an_initializer_is_folded_into_its_variable() -> None:
    graph = Graph()
    with graph.as_default():
        w = Variable(np.zeros(3, np.float32), name="w")
        group(w.initializer, name="init")
    plane = collapse(describe(graph))
    assert [(box.label, len(box.nodes)) for box in plane.boxes] == [("w", 3), ("init", 1)]
    [edge] = plane.edges
    assert list(edge.control) == ["w/initializer"]
    assert not edge.tensors


def leaves(plane: Plane) -> Iterator[tuple[Plane, int]]:
    for number, box in enumerate(plane.boxes):
        if box.plane is None:
            yield plane, number
        else:
            yield from leaves(box.plane)


@given(CHOICES, OPEN)
def test_no_edge_is_lost_and_none_is_made_up(choices: list, wish: dict) -> None:
    nodes = graph_of(choices)
    plane = collapse(nodes, **wish)
    seen = [node.name for inner, number in leaves(plane) for node in inner.boxes[number].nodes]
    assert sorted(seen) == sorted(node.name for node in nodes)
    for inner, number in leaves(plane):
        own = {node.name for node in inner.boxes[number].nodes}
        wanted = {name for node in inner.boxes[number].nodes for name in node.inputs} - own
        edges = [edge for edge in inner.edges if edge.target == number]
        assert {name for edge in edges for name in edge.tensors} == wanted
    check_edges(plane, None, None)


def check_edges(plane: Plane, around: Plane | None, number: int | None) -> None:
    """Each end is a box that has the tensors, or continues in an edge of the plane around."""
    for edge in plane.edges:
        carried = {*edge.tensors, *edge.control}
        assert carried
        assert edge.source != edge.target or edge.source == OUTSIDE
        if OUTSIDE in (edge.source, edge.target):
            assert around is not None
            outer = around.edges[edge.outer]
            assert number in (outer.source, outer.target)
            assert carried <= {*outer.tensors, *outer.control}
        if edge.source != OUTSIDE:
            assert carried <= {node.name for node in plane.boxes[edge.source].nodes}
    for inner, box in enumerate(plane.boxes):
        if box.plane is not None:
            check_edges(box.plane, plane, inner)


def test_edges_count_bytes_once_and_say_what_is_unknown() -> None:
    w = Node("s/w", "Variable", PS, shape=(10,))
    x = Node("s/x", "Placeholder", PS, shape=(None,))
    users = [Node(f"t/{name}", "add", FIRST, ("s/w", "s/x")) for name in "ab"]
    [edge] = collapse([w, x, *users], depth=0).edges
    assert (list(edge.tensors), edge.bytes, edge.unknown, edge.crosses) == (["s/w", "s/x"], 40, 1, True)


# Rows and orders.


def test_boxes_come_in_the_order_of_the_flow_also_around_a_cycle() -> None:
    assert flow_order([0, 1, 2], {(2, 1): 1, (1, 0): 1}) == [2, 1, 0]
    # A variable's scope gives to two replicas, and takes back one update.
    assert flow_order([0, 1, 2], {(0, 1): 2, (0, 2): 2, (1, 0): 1, (2, 0): 1})[0] == 0


def test_rows_go_down_and_what_has_slack_is_near_its_use() -> None:
    assert ranks(5, [(0, 1), (1, 2), (2, 4), (3, 4)]) == [0, 1, 2, 2, 3]


def test_crossings_are_undone() -> None:
    rows = ordered([[0, 1, 2], [3, 4, 5]], LINKS, {}, frozenset())
    assert crossings([[0, 1, 2], [3, 4, 5]], LINKS) == 3
    assert crossings(rows, LINKS) == 0


# Places.


def shown_of(nodes: Sequence[Node], **wish: object) -> Spread:
    return spread(lay_out(collapse(nodes, **wish), Blocks()))  # type: ignore[arg-type]


def check_places(view: Spread) -> None:
    boxes = view.shown
    for number, box in enumerate(boxes):
        assert box.x >= -0.01
        assert box.x + box.width <= view.width + 0.01
        assert box.y >= -0.01
        assert box.y + box.height <= view.height + 0.01
        assert not any(overlap(box, other) for other in boxes[:number])
        if view.frames:
            [frame] = [frame for frame in view.frames if frame.device == box.box.device]
            assert frame.left < box.x
            assert box.x + box.width < frame.right
        if box.inside is not None:
            assert (box.inside.width, box.inside.height) == (box.width, box.height)
            check_places(box.inside)
    for left, right in pairwise(view.frames):
        assert left.right < right.left
    check_lines(view)


def overlap(a: Shown, b: Shown) -> bool:
    beside = a.x + a.width <= b.x + 0.01 or b.x + b.width <= a.x + 0.01
    return not beside and a.y + a.height > b.y + 0.01 and b.y + b.height > a.y + 0.01


def check_lines(view: Spread) -> None:
    """Each line goes from below its source to the top of its target, and hits no box."""
    for way in view.ways:
        (x0, y0), (x1, y1) = way.points[0], way.points[-1]
        if way.line.source >= 0:
            source = view.shown[way.line.source]
            assert source.x < x0 < source.x + source.width
            assert y0 == pytest.approx(source.y + source.height)
        if way.line.target >= 0:
            target = view.shown[way.line.target]
            assert target.x < x1 < target.x + target.width
            assert y1 == pytest.approx(target.y)
        for x, y in along(way.points, way.line.track):
            assert -0.01 <= x <= view.width + 0.01
            for box in view.shown:
                hit = box.x + 0.5 < x < box.x + box.width - 0.5 and box.y + 0.5 < y < box.y + box.height - 0.5
                assert not hit, (way.line, box.box.key)


def along(points: Sequence[tuple[float, float]], track: bool) -> Iterator[tuple[float, float]]:
    """Yield points of a line, its curves included."""
    for number, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        for step in range(9):
            t = step / 8
            eased = t if track or number % 2 == 0 else t * t * (3 - 2 * t)  # a curve with upright ends
            yield x0 + (x1 - x0) * eased, y0 + (y1 - y0) * t


@settings(deadline=None, max_examples=examples(60))
@given(CHOICES, OPEN)
def test_nothing_is_in_the_way_of_anything(choices: list, wish: dict) -> None:
    check_places(shown_of(graph_of(choices), **wish))


@settings(deadline=None, max_examples=examples(60))
@given(CHOICES, OPEN, st.integers(0, 2**12))
def test_nor_after_any_scopes_are_opened_and_closed(choices: list, wish: dict, which: int) -> None:
    sheet = lay_out(collapse(graph_of(choices), **wish), Blocks())
    numbers = {box: number for number, box in enumerate(walk(sheet.plane))}
    check_places(spread(sheet, lambda box: bool(which >> numbers[box] % 12 & 1)))


def entries(view: Spread) -> dict[tuple[str, str], set[float]]:
    """Return the heights at which lines from a box enter the frame of another device."""
    frames = {frame.device: frame for frame in view.frames}
    found: dict[tuple[str, str], set[float]] = {}
    for way in view.ways:
        source, target = (view.shown[end].box for end in (way.line.source, way.line.target))
        if source.device == target.device:
            continue
        frame, before = frames[target.device], way.points[0][0]
        border = frame.left if before < frame.left else frame.right
        for (x0, y0), (x1, _) in pairwise(way.points):
            if min(x0, x1) <= border <= max(x0, x1) and x0 != x1:
                found.setdefault((source.key, target.device), set()).add(round(y0, 3))
    return found


@settings(deadline=None, max_examples=examples(60))
@given(CHOICES, OPEN)
def test_what_a_box_sends_enters_each_other_device_once(choices: list, wish: dict) -> None:
    assert all(len(heights) == 1 for heights in entries(shown_of(graph_of(choices), **wish)).values())


def test_one_value_for_two_users_on_another_device_is_one_arrow_with_one_text() -> None:
    nodes = [
        Node("w", "Variable", "/job:ps", shape=(64, 100)),
        Node("x", "Placeholder", "/job:worker", shape=(8, 64)),
        Node("the_first_product_of_the_layer", "matmul", "/job:worker", ("x", "w"), shape=(8, 100)),
        Node(
            "the_second_product_of_the_layer",
            "matmul",
            "/job:worker",
            ("the_first_product_of_the_layer", "w"),
            shape=(8, 100),
        ),
        Node(
            "the_third_product_of_the_layer",
            "matmul",
            "/job:worker",
            ("the_second_product_of_the_layer", "w"),
            shape=(8, 100),
        ),
    ]
    view = shown_of(nodes)
    sheet = lay_out(collapse(nodes), TextMeasure())
    crossing = [line for line in sheet.lines if any(edge.crosses for edge in line.edges)]
    assert len(crossing) == 3
    assert len({line.bends[0] for line in crossing}) == 1
    [label] = [line.label for line in crossing if line.label]  # shorter where there is less room
    assert label in ("(64, 100) f32 · 25.6 kB", "(64, 100) f32", "25.6 kB")
    assert [len(heights) for heights in entries(view).values()] == [1]


@given(CHOICES)
def test_every_edge_is_drawn(choices: list) -> None:
    def check(sheet: Sheet) -> None:
        drawn = [edge for line in sheet.lines for edge in line.edges]
        assert sorted(map(id, drawn)) == sorted(map(id, sheet.plane.edges))
        for line in sheet.lines:
            assert {(edge.source, edge.target) for edge in line.edges} == {(line.source, line.target)}
        for spot in sheet.spots:
            if spot.sheet is not None:
                check(spot.sheet)

    check(lay_out(collapse(graph_of(choices)), Blocks()))


@given(CHOICES)
def test_a_graph_has_one_picture(choices: list) -> None:
    def places() -> list[tuple[float, ...]]:
        view = shown_of(graph_of(choices), depth=9)
        return [(box.x, box.y, box.width) for box in view.shown] + [
            p for way in view.ways for p in way.points
        ]

    assert places() == places()


def test_devices_that_talk_stand_side_by_side() -> None:
    nodes = [Node("w", "Variable", PS, shape=(3,))]
    nodes += [Node(f"y{place[-1]}", "exp", place, ("w",)) for place in (FIRST, SECOND)]
    assert [frame.device for frame in shown_of(nodes).frames] == [FIRST, PS, SECOND]


def test_opening_a_scope_moves_nothing_that_is_left_of_it_or_above() -> None:
    nodes = [Node("x", "Placeholder"), Node("s/a", "exp", "", ("x",)), Node("s/b", "tanh", "", ("s/a",))]
    nodes += [Node("y", "negative", "", ("x",)), Node("z", "add", "", ("s/b", "y"))]
    sheet = lay_out(collapse(nodes, depth=0), Blocks())
    at = {box.box.label: box for box in spread(sheet).shown}
    then = {box.box.label: box for box in spread(sheet, lambda box: True).shown}
    assert (then["s/"].x, then["s/"].y) == (at["s/"].x, at["s/"].y)
    assert (then["x"].y, then["x"].x <= at["x"].x) == (at["x"].y, True)
    assert then["z"].y > at["z"].y


# Time: CPU seconds, since others may use this machine; the bounds are those that people notice.


def many(count: int, scope_of: Callable[[int], str]) -> list[Node]:
    rng = np.random.default_rng(0)
    nodes: list[Node] = []
    for number in range(count):
        far = rng.geometric(1 / 30, size=rng.integers(0, 4))
        inputs = tuple(dict.fromkeys(nodes[-min(int(n), number)].name for n in far)) if number else ()
        place = (PS, FIRST, SECOND)[int(rng.integers(0, 15)) % 3 if number % 5 == 0 else 1]
        nodes.append(Node(f"{scope_of(number)}op{number}", "add", place, inputs, (), (32, 64)))
    return nodes


@pytest.mark.parametrize(
    ("count", "in_scopes"), matrix([(200, True), (600, False)], rest=[(2000, True), (2000, False)])
)
def test_a_large_graph_is_laid_out(count: int, in_scopes: bool) -> None:
    view = shown_of(many(count, lambda number: f"scope{number // 20}/" if in_scopes else ""))
    assert view.width > 0
