"""Inputs on which every op is checked: its gradient with finite differences, and what it computes elsewhere.

for inputs, attrs in examples_of("softmax"):
    OPS["softmax"].forward(np, *inputs, **attrs)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nbdist.graph.ops import OPS
from nbdist.graph.ops.indexing import HERE

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Shape = tuple[int, ...]


class Example(NamedTuple):
    """Inputs and attributes of one op."""

    inputs: tuple[Array, ...]
    attrs: dict[str, Any]


Examples = Callable[[Rng], list[Example]]


def examples_of(name: str) -> list[Example]:
    """Return an op's examples, the same in each call; none for an op without."""
    return EXAMPLES[name](np.random.default_rng(0)) if name in EXAMPLES else []


def normal(*shapes: Shape, **attrs: Any) -> Examples:
    """An example with one normal array for each shape."""
    return lambda rng: [Example(tuple(np.asarray(rng.normal(size=s)) for s in shapes), attrs)]


def normals(*shapes: Shape) -> Examples:
    """An example with a normal array for each shape."""
    return lambda rng: [Example((rng.normal(size=s),), {}) for s in shapes]


def varied(shape: Shape, name: str, *values: Any, like: Shape | None = None, **attrs: Any) -> Examples:
    """An example for each value of an attribute; of normal numbers and, if given, zeros of another shape."""
    zeros = () if like is None else (np.zeros(like),)
    return lambda rng: [Example((rng.normal(size=shape), *zeros), {name: v, **attrs}) for v in values]


# Of ufuncs: uniform numbers where the function is smooth.

RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("divide", "power", "reciprocal", "log", "sqrt", "absolute", "sign"), (0.5, 2)),
    **dict.fromkeys(("arctan2", "log2", "log10", "cbrt", "hypot", "fabs"), (0.5, 2)),
    **dict.fromkeys(("arcsin", "arccos", "arctanh"), (-0.9, 0.9)),
    **dict.fromkeys(("floor", "ceil", "rint", "trunc"), (0.1, 0.4)),
    **dict.fromkeys(("floor_divide", "remainder"), (0.7, 0.9)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "invert"), (-9, 9)),
    "log1p": (-0.5, 2), "tan": (-1, 1), "arccosh": (1.5, 3), "relu": (0.1, 2), "sigmoid": (-3, 3),
    "erf": (-3, 3),
}  # fmt: skip
PAIRS: list[tuple[Shape, Shape]] = [
    ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3)), ((2, 3), ()),
]  # fmt: skip


def uniform(name: str, inputs: int = 1) -> Examples:
    """Examples of an elementwise op."""
    low, high = RANGES.get(name, (-2, 2))
    dtype = np.int64 if low == -9 else np.float64
    shapes: list[tuple[Shape, ...]] = [((),), ((5,),), ((2, 3),)] if inputs == 1 else list(PAIRS)
    return lambda rng: [
        Example(tuple(np.asarray(rng.uniform(low, high, s)).astype(dtype) for s in one), {}) for one in shapes
    ]


def cast(rng: Rng) -> list[Example]:
    return [Example((rng.normal(size=(2, 3)),), {"dtype": np.dtype(np.float64)})]


def where(rng: Rng) -> list[Example]:
    return [
        Example((rng.uniform(size=(2, 3)) > 0.5, rng.normal(size=(2, 3)), rng.normal(size=s)), {})
        for s in ((2, 3), (3,), ())
    ]


# Of reductions and scans.


def distinct(name: str, *cases: tuple[Shape, Any], **attrs: tuple[Any, ...]) -> Examples:
    """Examples of whole numbers in any order, none twice; ``attrs`` has values of one attribute."""
    ((other, values),) = attrs.items()
    return lambda rng: [Example((images(rng, s),), {name: a, other: v}) for s, a in cases for v in values]


REDUCED = distinct(
    "axis", ((4,), None), ((2, 3), 0), ((2, 3), 1), ((2, 3), -1), ((2, 3, 2), (0, 2)), keepdims=(False, True)
)


def scanned(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s),), {"axis": a, "dtype": None})
        for s, a in (((4,), 0), ((2, 3), 0), ((2, 3), -1), ((1, 2), 0))
    ]


def recurrence(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s), rng.normal(size=s)), {"axis": a})
        for s, a in (((5,), 0), ((2, 3), 1), ((4, 2), 0))
    ]


def length(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s),), {"axis": a, "keepdims": k})
        for s, a, k in (((3,), (0,), False), ((2, 3), (0, 1), True), ((2, 3), (1,), False))
    ]


# Of linear algebra.


def matrices(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s) + 3 * np.eye(s[-1]),), {}) for s in ((1, 1), (2, 2), (3, 3), (2, 3, 3))
    ]


def positive(rng: Rng) -> list[Example]:
    return [
        Example((a @ np.swapaxes(a, -1, -2) + np.eye(a.shape[-1]),), {})
        for a in (rng.normal(size=s) for s in ((1, 1), (3, 3), (2, 2, 2)))
    ]


def solve(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=a) + 3 * np.eye(a[-1]), rng.normal(size=b)), {})
        for a, b in (
            ((3, 3), (3,)), ((2, 2), (2, 4)), ((2, 3, 3), (2, 3, 1)), ((2, 3, 3), (3, 2)),
            ((2, 2, 2), (2,)), ((2, 2), (3, 2, 1)),
        )
    ]  # fmt: skip


def matmul(rng: Rng) -> list[Example]:
    shapes: list[tuple[Shape, Shape]] = [
        ((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 2)),
    ]  # fmt: skip
    return [Example((rng.normal(size=a), rng.normal(size=b)), {}) for a, b in shapes]


def einsum(rng: Rng) -> list[Example]:
    cases: list[tuple[str, tuple[Shape, ...]]] = [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bkj->kib", ((2, 3, 4), (2, 5, 4))),
        ("ij->j", ((2, 3),)),
        ("ij->ji", ((2, 3),)),
        ("ij,ij->", ((2, 3), (2, 3))),
        ("ijk,k->i", ((2, 3, 2), (2,))),
        ("ai,bj->ab", ((2, 3), (3, 2))),
        ("ij,jk,kl->il", ((2, 3), (3, 2), (2, 4))),
        ("ij,jk->ik", ((2, 1), (3, 4))),
        ("i,j->ij", ((2,), (3,))),
        (",i->i", ((), (3,))),
    ]
    return [
        Example(
            tuple(rng.normal(size=s) for s in shapes),
            {"inputs": tuple(text.split("->")[0].split(",")), "output": text.split("->")[1]},
        )
        for text, shapes in cases
    ]


def diagonal(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s),), {"offset": k, "axis1": a, "axis2": b})
        for s, k, a, b in (((3, 3), 0, 0, 1), ((3, 4), 1, 0, 1), ((3, 4), -1, 1, 0), ((2, 3, 3), 0, -2, -1))
    ]


def put_diagonal(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s), np.zeros(like)), {"offset": k, "axis1": 0, "axis2": 1})
        for s, like, k in (((3,), (3, 3), 0), ((2, 2), (3, 2, 2), -1))
    ]


def triangles(rng: Rng) -> list[Example]:
    return [Example((rng.normal(size=s),), {"k": k}) for s, k in (((3, 3), 0), ((2, 4), 1), ((2, 3, 2), -1))]


# Of shapes, pieces and places.


def likes(shape: Shape, *others: Shape) -> Examples:
    return lambda rng: [Example((rng.normal(size=shape), np.zeros(s)), {}) for s in others]


def cut(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=(4, 3)), np.zeros(s)), {"axis": a}) for s, a in (((1, 3), 0), ((4, 2), -1))
    ]


def concatenate(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=(2, 3)), rng.normal(size=s)), {"axis": a})
        for s, a in (((4, 3), 0), ((2, 1), 1))
    ]


def tile(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s),), {"reps": r})
        for s, r in (((3,), (2,)), ((2, 3), (2, 3)), ((2, 1), (1, 4)))
    ]


def repeat(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s),), {"repeats": r, "axis": a})
        for s, r, a in (((3,), 2, 0), ((2, 3), 3, 0), ((2, 3), (0, 2, 1), 1), ((2, 3), (1, 2), -2))
    ]


def pad(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s),), {"widths": w, "values": v})
        for s, w, v in (
            ((3,), ((1, 2),), ((0.0, 0.0),)),
            ((2, 3), ((0, 1), (2, 0)), ((0.0, 0.0), (0.0, 0.0))),
            ((2, 3), ((1, 1), (2, 1)), ((1.0, 2.0), (3.0, 4.0))),
        )
    ]


def roll(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=(3, 4)),), {"shift": s, "axis": a})
        for s, a in (((1,), (0,)), ((-5,), (1,)), ((1, 2), (0, 1)), ((1, 1), (1, 1)))
    ]


def index(rng: Rng) -> list[Example]:
    i, j = np.array([2, 0, 2]), np.array([[1], [-1]])
    return [
        Example((rng.normal(size=(3, 4, 2)), *arrays), {"key": key})
        for arrays, key in (
            ((i,), (HERE,)),
            ((i,), (slice(None), HERE)),
            ((i % 2,), (..., HERE)),
            ((i, i), (HERE, HERE)),
            ((i, i % 2), (HERE, slice(1, 3), HERE)),
            ((i, j), (HERE, HERE, 0)),
            ((j % 2,), (0, slice(None), HERE)),
            ((j,), (None, HERE, ..., None)),
        )
    ]


def add_at(rng: Rng) -> list[Example]:
    return [Example((rng.normal(size=(3, 2)), np.zeros((4, 2)), np.array([1, 0, 1])), {"key": (HERE,)})]


def take(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=(3, 4)), np.array(p)), {"axis": a})
        for p, a in (([2, 0, 2], 0), ([[1, -1], [3, 1]], 1), (1, -1))
    ]


def take_back(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s), np.zeros((3, 4)), np.array(p)), {"axis": a})
        for s, p, a in (((3, 4), [2, 0, 2], 0), ((3, 2, 2), [[1, -1], [3, 1]], 1))
    ]


def take_along(rng: Rng) -> list[Example]:
    return [
        Example((rng.normal(size=s), np.array(p)), {"axis": a})
        for s, p, a in (
            ((2, 3), [[2, 0], [1, 1]], 1),
            ((2, 3), [[1, 0, 1]], 0),
            ((1, 3), [[0, 1], [2, 2]], 1),
            ((4,), [3, -1], 0),
        )
    ]


def add_along(rng: Rng) -> list[Example]:
    return [Example((rng.normal(size=(2, 2)), np.zeros((2, 3)), np.array([[2, 0], [1, 1]])), {"axis": 1})]


def gather(rng: Rng) -> list[Example]:
    ids = (np.array([2, 0, 2]), np.array([[1, 3], [3, 1]]), np.array(1))
    return [Example((rng.normal(size=(4, 3)), i), {}) for i in ids]


def add_rows(rng: Rng) -> list[Example]:
    return [Example((rng.normal(size=(3, 2)), np.array([2, 0, 2])), {"shape": (4, 2)})]


def searchsorted(rng: Rng) -> list[Example]:
    return [
        Example((np.array([1.0, 2.0, 2.0, 4.0]), rng.normal(size=(2, 3)) + 2), {"side": "left"}),
        Example((np.array([1, 2, 2, 4]), np.array([2, 5, 0])), {"side": "right"}),
    ]


# Of networks.


def probabilities(rng: Rng) -> list[Example]:
    return [Example((rng.uniform(0.1, 1, (3, 4)), np.array([0, 3, 1])), {})]


def cross_entropy(rng: Rng) -> list[Example]:
    return [Example((rng.normal(size=3), rng.uniform(size=(3, 4)), np.array([0, 3, 1])), {})]


CONVOLUTIONS: list[tuple[Shape, Shape, dict[str, Any]]] = [
    (x, k, {"strides": strides, "padding": padding, **({"dilation": dilation[0]} if dilation else {})})
    for x, k, strides, padding, *dilation in (
        ((2, 5, 6, 2), (3, 3, 2, 3), (1, 1), "valid"),
        ((2, 5, 6, 2), (3, 2, 2, 3), (1, 1), "same"),
        ((1, 7, 6, 1), (3, 3, 1, 2), (2, 2), "same"),
        ((2, 6, 7, 2), (2, 4, 2, 1), (2, 1), "valid"),
        ((1, 4, 4, 9), (1, 1, 9, 2), (1, 3), "same"),
        ((1, 3, 3, 1), (4, 4, 1, 1), (1, 1), "same"),
        ((2, 7, 8, 2), (3, 3, 2, 3), (1, 1), "valid", (2, 2)),
        ((2, 6, 7, 1), (3, 2, 1, 2), (1, 1), "same", (2, 3)),
        ((1, 9, 8, 2), (3, 2, 2, 2), (2, 1), "same", (2, 2)),
        ((1, 5, 12, 9), (1, 3, 9, 2), (1, 2), "valid", (1, 3)),  # windows too wide for the transposed copy
        ((1, 3, 3, 1), (2, 2, 1, 1), (1, 1), "same", (4, 4)),
    )
]


def conv2d(rng: Rng) -> list[Example]:
    plain = [
        Example((rng.normal(size=x), rng.normal(size=k)), {**how, "relu": False})
        for x, k, how in CONVOLUTIONS
    ]
    x, k, how = CONVOLUTIONS[0]
    biased = (rng.normal(size=x), rng.normal(size=k), rng.normal(size=k[-1]))
    return plain + [Example(biased, {**how, "relu": relu}) for relu in (False, True)]


def conv2d_gradient(first: int, second: int) -> Examples:
    """Examples of a gradient: of the result's shape, of one input, and the shape of the other."""

    def examples(rng: Rng) -> list[Example]:
        found = []
        for *case, how in CONVOLUTIONS:
            result = OPS["conv2d"].forward(np, *map(np.zeros, case), **how, relu=False)
            g = rng.normal(size=result.shape)
            used, like = case[first], case[second]
            found.append(Example((g, rng.normal(size=used), np.zeros(like)), how))
        return found

    return examples


POOLINGS: list[tuple[Shape, dict[str, Any]]] = [
    ((2, 4, 6, 2), {"size": (2, 2), "strides": (2, 2), "padding": "valid"}),
    ((1, 5, 6, 2), {"size": (2, 3), "strides": (2, 3), "padding": "same"}),
    ((2, 5, 5, 1), {"size": (3, 2), "strides": (1, 2), "padding": "valid"}),
    ((1, 5, 4, 2), {"size": (3, 3), "strides": (2, 1), "padding": "same"}),
    ((1, 7, 5, 1), {"size": (2, 2), "strides": (3, 2), "padding": "valid"}),
]


def pooled(rng: Rng) -> list[Example]:
    return [Example((images(rng, shape),), how) for shape, how in POOLINGS]


def images(rng: Rng, shape: Shape) -> Array:
    """Whole numbers in any order, none twice."""
    return rng.permutation(np.arange(1.0, 1 + np.prod(shape))).reshape(shape)


def which(of_windows: bool) -> Examples:
    """Examples of (values by window, index of the element in each window)."""

    def examples(rng: Rng) -> list[Example]:
        found = []
        for shape, how in POOLINGS:
            x = images(rng, shape)
            largest = OPS["max_pool2d"].forward(np, x, **how)
            places = OPS["max_pool2d_which"].forward(np, largest, x, **how)
            g = rng.normal(size=places.shape)
            if of_windows:
                found.append(Example((np.asarray(g), places, np.zeros(shape)), how))
            else:
                found.append(Example((np.asarray(rng.normal(size=shape)), places), how))
        return found

    return examples


def spread(rng: Rng) -> list[Example]:
    return [
        Example((np.ones_like(OPS["avg_pool2d"].forward(np, np.zeros(shape), **how)), np.zeros(shape)), how)
        for shape, how in POOLINGS
    ]


EXAMPLES: dict[str, Examples] = {
    **{n: uniform(n, f.nin) for n in OPS if isinstance(f := getattr(np, n, None), np.ufunc)},
    "sigmoid": uniform("sigmoid"), "relu": uniform("relu"), "erf": uniform("erf"), "cast": cast,
    "sigmoid_grad": lambda rng: [Example((rng.normal(size=(2, 3)), rng.uniform(size=(2, 3))), {})],
    "relu_grad": normal((2, 3), (2, 3)), "where": where,
    **dict.fromkeys(("sum", "max", "min", "prod", "any", "all", "mean"), REDUCED),
    "root_of_variance": lambda rng: [Example((rng.uniform(0.5, 2, s),), {}) for s in ((), (2, 3))],
    "sort": distinct("axis", ((5,), 0), ((2, 4), -1), ((3, 2), 0), kind=(None,)),
    "cumsum": scanned, "cumprod": scanned, "recurrence": recurrence, "length": length,
    **dict.fromkeys(("det", "det_sign", "log_abs_det", "inv"), matrices),
    "cholesky": positive, "solve": solve, "singular_values": normals((3, 3), (2, 4), (2, 3, 2)),
    "matmul": matmul, "einsum": einsum, "diagonal": diagonal, "put_diagonal_like": put_diagonal,
    "diag": varied((3,), "offset", 0, 2, -1), "triu": triangles, "tril": triangles,
    "reshape": varied((2, 6), "shape", (12,), (3, 4), (-1, 2), (4, -1)),
    "reshape_like": likes((6,), (2, 3)),
    "transpose": varied((2, 3, 4), "axes", (2, 0, 1), (0, 2, 1), (-1, 1, 0)),
    "expand_dims": varied((2, 3), "axis", (0,), (1,), (0, -1)),
    "squeeze": varied((1, 3, 1), "axis", (0,), (0, 2)),
    "broadcast_to": lambda rng: [
        Example((rng.normal(size=s),), {"shape": (2, 3)}) for s in ((3,), (2, 1), ())
    ],
    "broadcast_like": lambda rng: [
        Example((rng.normal(size=s), np.zeros((2, 3))), {}) for s in ((3,), (2, 1), ())
    ],
    "sum_to_like": likes((2, 3), (3,), (2, 1), (), (2, 3), (1, 3)),
    "leading_like": cut, "behind_like": cut, "concatenate": concatenate,
    "getitem": varied(
        (3, 4), "key", (0,), (slice(1, 3),), (..., 1), (slice(None, None, 2), None),
        (slice(None), slice(-2, None)),
    ),
    "setitem_like": varied((4,), "key", (1,), like=(3, 4)),
    "tile": tile, "fold_tiles": varied((4, 6), "reps", (2, 2), like=(2, 3)), "repeat": repeat,
    "sum_runs": varied((2, 6), "repeats", 2, (3, 1, 2), like=(2, 3), axis=1), "pad": pad, "roll": roll,
    "index": index, "add_at_like": add_at, "take": take, "take_back_like": take_back,
    "take_along_axis": take_along, "add_along_like": add_along, "gather_rows": gather, "add_rows": add_rows,
    "searchsorted": searchsorted, "read": normals((), (2, 3)), "copy": normals((), (2, 3)),
    "softmax": normals((4,), (3, 4), (2, 3, 4)), "log_softmax": normals((4,), (3, 4), (2, 3, 4)),
    "pick_log_likelihood": probabilities, "sparse_cross_entropy_grad": cross_entropy,
    "conv2d": conv2d, "conv2d_to_input": conv2d_gradient(1, 0), "conv2d_to_kernel": conv2d_gradient(0, 1),
    "max_pool2d": pooled, "avg_pool2d": pooled, "avg_pool2d_grad": spread,
    "max_pool2d_to_which": which(of_windows=True), "max_pool2d_of_which": which(of_windows=False),
}  # fmt: skip
"""By the op's name."""
