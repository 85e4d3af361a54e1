"""The picture of a graph as SVG, PNG and notebook output, and the magic that shows it."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from graphs_to_show import PS, WORKERS, deep, ordered_steps, perceptron
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from PIL import Image
from tiers import matrix

import nbdist as nb
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.layout.nodes import Node
from nbdist.ui.frozen.run_figure import INK, TRAIN
from nbdist.ui.graph.marks import width
from nbdist.ui.graph.view import PICTURE_LIMIT, GraphView, sends, show_graph

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><img src=x onerror=alert(1)>&amp;\x00\x1b\ud800]]>\"'"


def hostile() -> GraphView:
    place = "/job:worker/task:0"
    nodes = [Node(f"{HOSTILE}/{name}", "exp", place) for name in "abc"]
    return GraphView(
        [*nodes, Node("y", HOSTILE, "", (nodes[0].name,), (nodes[1].name,), (3,), "float32", HOSTILE)]
    )


def drawing(bundle: dict[str, Any]) -> dict[str, Any]:
    """What the page's script unpacks."""
    packed = re.search(r'<script type="application/gzip">([^<]*)</script>', bundle["text/html"])
    assert packed
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def words(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


# As SVG.


def test_an_svg_shows_devices_scopes_and_sends() -> None:
    texts = words(show_graph(perceptron()).svg())
    assert {"worker 0", "ps 0", "worker 1", PS, "hidden/", "6 ops · 2 variables · 314 kB"} <= {*texts}
    assert texts.count("4 tensors · 318 kB") == 2  # the gradients of each worker
    assert "w" not in texts


def test_an_open_scope_shows_its_ops_with_shape_dtype_and_bytes() -> None:
    texts = words(show_graph(perceptron(), expand="hidden").svg())
    assert {"hidden/", "w", "(784, 100) f32 · 314 kB", "b", "w/assign_sub"} <= {*texts}
    texts = words(show_graph(deep(2, 9), depth=1).svg())
    assert "(32, 64) f32" in texts  # an op says what it makes
    assert "0.5" in texts  # and which constants go into it


def test_variables_have_a_shape_of_their_own_and_order_has_dashes() -> None:
    svg = show_graph(ordered_steps()).svg()
    nodes = ElementTree.fromstring(svg).iter()
    drawn = {(node.tag.removeprefix(SVG), node.get("class")) for node in nodes}
    assert {("path", "nbd-variable"), ("rect", "nbd-op"), ("path", "nbd-after")} <= drawn
    assert ".nbd-after{stroke-width:1.2;stroke-dasharray:3 3}" in svg
    assert "prefers-color-scheme:dark" in svg


def test_names_are_escaped_everywhere() -> None:
    view = hostile()
    bundle = view._repr_mimebundle_()
    page = bundle["text/html"]
    for svg in (view.svg(), GraphView(view.nodes, depth=1).svg(), drawing(bundle)["svg"]):
        root = ElementTree.fromstring(svg)
        assert not [node for node in root.iter() if "img" in node.tag or "script" in node.tag]
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("<img ") == 1
    assert len(view.png()) > 0


def test_texts_fit_into_their_boxes() -> None:
    name = "gradients/W_0/matmul (?, 100) f32 · 314 kB MMmm@%#"
    for bold in (False, True):
        font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=12)
        real = TextPath((0, 0), name, size=12, prop=font).get_extents().width
        assert real <= width(name, 12, bold) <= 1.35 * real


# As PNG.


@pytest.mark.slow
def test_a_png_opens_and_is_as_large_as_its_scale_says() -> None:
    view = show_graph(perceptron(WORKERS[:1]))
    svg = ElementTree.fromstring(view.svg())
    for scale in (0.5, 2.0):
        with Image.open(io.BytesIO(view.png(scale))) as image:
            assert image.size == pytest.approx(
                [float(svg.get(side) or 0) * scale for side in ("width", "height")], abs=2
            )
            assert image.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
            colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in (TRAIN, INK)} <= colours  # what is sent, and words


def test_a_picture_is_saved_by_its_suffix(tmp_path: Path) -> None:
    view = show_graph(ordered_steps())
    assert ElementTree.parse(view.save(tmp_path / "graph.svg")).getroot().tag == f"{SVG}svg"
    assert view.save(str(tmp_path / "graph.PNG")).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidArgumentError, match=r"graph\.pdf.*\.svg or \.png"):
        view.save(tmp_path / "graph.pdf")
    with pytest.raises(
        NotFoundError, match=r"cannot save 'graph.svg': the folder '.*missing' does not exist"
    ):
        view.save(tmp_path / "missing" / "graph.svg")
    with pytest.raises(InvalidArgumentError, match="scale=0"):
        view.png(0)


# In a notebook.


@cache
def shown(make: Callable[[], nb.Graph]) -> dict[str, Any]:
    """The notebook output of a graph."""
    return show_graph(make())._repr_mimebundle_()


@pytest.mark.parametrize("make", matrix([perceptron], rest=[deep]))
@pytest.mark.slow
def test_a_notebook_output_of_200_nodes_is_small(make: Callable[[], nb.Graph]) -> None:
    bundle = shown(make)
    assert set(bundle) == {"image/png", "text/html", "text/plain"}
    assert len(base64.b64decode(bundle["image/png"])) <= PICTURE_LIMIT < 150_000
    assert bundle["image/png"] in bundle["text/html"]  # an untrusted notebook shows its HTML, cleaned
    assert len(json.dumps(bundle)) < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("count", matrix([160], rest=[300, 2000]))
def test_a_graph_of_very_many_nodes_has_an_output_too(count: int) -> None:
    nodes = [
        Node(f"scope{i // 20}/op{i}", "exp", WORKERS[i % 2], (f"scope{(i - 7) // 20}/op{i - 7}",))
        for i in range(count)
    ]
    bundle = GraphView(nodes)._repr_mimebundle_()
    assert len(base64.b64decode(bundle["image/png"])) <= PICTURE_LIMIT
    assert len(json.dumps(bundle)) < 600_000


def test_the_page_holds_the_geometry_of_every_scope() -> None:
    data = drawing(shown(perceptron))
    groups = [
        node
        for node in ElementTree.fromstring(data["svg"]).iter(f"{SVG}g")
        if node.get("class") == "nbd-sheet"
    ]
    assert len(groups) == len(data["sheets"])
    inner = [spot[-1] for sheet in data["sheets"] for spot in sheet["spots"] if spot[-1] >= 0]
    assert sorted(inner) == list(range(1, len(groups)))
    for group, sheet in zip(groups, data["sheets"], strict=True):
        frames, lines, _, boxes = group
        sizes = len(sheet["frames"]), len(sheet["lines"]), len(sheet["spots"])
        assert (len(frames), len(lines), len(boxes)) == sizes


def test_a_sent_tensor_counts_once_for_each_device() -> None:
    w = Node("w", "Variable", PS, shape=(10,))
    users = [Node(f"y{i}", "exp", WORKERS[0], ("w",), (), (None,)) for i in range(3)]
    back = Node("z", "exp", PS, ("y0",))
    down, up = sends([w, *users, back])
    assert (down.source, down.target, down.tensors, down.size()) == (PS, WORKERS[0], 1, "40 B")
    assert (up.tensors, up.size()) == (1, "1 of unknown size")


def test_a_view_is_text_elsewhere() -> None:
    lines = repr(show_graph(perceptron())).splitlines()
    assert lines[0] == "189 ops · 4 variables · 318 kB · 3 devices · 16 tensors sent between them, 1.27 MB"
    assert f"  {PS}: hidden/, output/, update/" in lines
    assert "  worker 0 sends ps 0 4 tensors, 318 kB" in lines


# What can be asked for.


def test_objects_with_a_graph_show_it() -> None:
    graph = ordered_steps()
    shown = repr(show_graph(graph))
    with graph.as_default():
        assert repr(show_graph()) == repr(show_graph(graph.tensors[0])) == shown
    with nb.Session(graph=graph) as session:
        assert repr(show_graph(session)) == shown


def test_a_placement_fills_in_devices() -> None:
    full = f"{WORKERS[0]}/device:CPU:0"
    view = show_graph(ordered_steps(), placement={"w": full})
    assert "worker 0 · CPU:0" in words(view.svg())
    with pytest.raises(InvalidArgumentError, match="no tensor 'v'"):
        show_graph(ordered_steps(), placement={"v": full})


def test_invalid_arguments_raise() -> None:
    with (
        nb.Graph().as_default(),
        pytest.raises(FailedPreconditionError, match=r"empty; make tensors.*placeholder"),
    ):
        show_graph()
    with pytest.raises(InvalidArgumentError, match=r"no name scope 'hiden'; did you mean 'hidden'.*It has "):
        show_graph(perceptron(), expand="hiden")
    with pytest.raises(InvalidArgumentError, match="depth is a number"):
        show_graph(perceptron(), depth=-1)
    with pytest.raises(InvalidArgumentError, match="not 3"):
        show_graph(3)


@pytest.mark.slow
def test_a_picture_needs_matplotlib_only_as_png() -> None:
    code = (
        "import sys, nbdist as nb, numpy as np\n"
        "x = nb.placeholder(np.float32, (3,), name='x')\n"
        "assert '<svg' in nb.show_graph().svg()\n"
        "assert 'matplotlib' not in sys.modules and 'PIL' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The magic.


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "nbdist")
    shell.user_ns.update(graph=perceptron(), number=3)
    yield shell
    InteractiveShell.clear_instance()


def test_the_magic_shows_a_graph_by_name_or_the_default_one(shell: InteractiveShell) -> None:
    view = shell.run_line_magic("graph", "graph --expand hidden,update")
    assert "assign_sub" in view.svg()
    with ordered_steps().as_default():
        assert "steps" in shell.run_line_magic("graph", "--depth 0").svg()


def test_the_magic_saves(shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("graph", f"graph --save {tmp_path / 'g.svg'}")
    assert (tmp_path / "g.svg").read_text().startswith("<svg")
    assert "saved to" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (
            "--expnad hidden",
            InvalidArgumentError,
            "no flag '--expnad'; did you mean --expand.*--depth, --save",
        ),
        ("--depth many", InvalidArgumentError, "expected a whole number"),
        ("graph extra", InvalidArgumentError, "unexpected word 'extra'.*--expand, --depth, --save"),
        ("nothing", NotFoundError, "no variable 'nothing'"),
        ("number", InvalidArgumentError, "not 3"),
    ],
)
def test_the_magic_reports_invalid_arguments(
    shell: InteractiveShell, line: str, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        shell.run_line_magic("graph", line)


def test_the_magic_has_help(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("pinfo", "%graph")
    help_text = capsys.readouterr().out
    assert "%graph --expand hidden,output" in help_text
    assert "--depth N" in help_text
