"""Serializer for values of the client, which tasks rebuild: for --push and the arguments of nb.launch.

    packed = pack({"x": x, "helper": helper})           # on the client: nodes, and the buffers of arrays
    values = build(packed, memory)                      # on a task: arrays are read-only views of `memory`

A value becomes a *node*: a tuple that begins with its kind. Numbers of arrays, long texts and columns of
frames are not in the nodes; they lie one after the other in a block of memory that the tasks of one host
share (see delivery.py). Functions are sent as code objects, classes as source. So the nodes may only use
ipyparallel's authenticated channel, which carries code anyway.

A function is sent with the globals that it uses, and with their globals in turn. All functions of one module
of the client share one namespace on a task, as they do in the notebook.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import importlib
import inspect
import io
import linecache
import marshal
import pathlib
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from nbdist.data.dataset import Dataset
from nbdist.data.recipe import PARTS, describe, from_pipeline, pipeline_of, rebuild, state_of
from nbdist.data.steps import Inner
from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.frameworks.registry import SPECS
from nbdist.nn import Model
from nbdist.run.values import outcome

Node: TypeAlias = tuple[Any, ...]

ALIGNMENT = 64  # bytes: of an array's first item in the shared memory
INLINE_BYTES = 4096  # arrays and texts up to this size are sent with the nodes
MOST_ITEMS = 5_000_000  # values in lists, dicts and sets; more are an array
MOST_DEPTH = 60
MOST_SOURCE = 1 << 20  # characters of source that are sent for tracebacks
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
PLAIN = (
    type(None), bool, int, float, complex, range, slice, type(...), type(NotImplemented),
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone,
    decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath,
)  # fmt: skip
"""Types with values that are sent unchanged."""
COLLECTIONS = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
HINTS = {
    **{start: hint for one in SPECS.values() for start, hint in one.push_hints.items()},
    "generator": "make a list or an array of it",
    "tensorflow.": "push tensor.numpy()",
    "cupy.": "push cupy.asnumpy(array)",
    "scipy.sparse": "push its arrays (data, indices, indptr) and build it there",
    "numpy.random": "push a seed, and make the generator on the workers",
    "nbdist.graph": "a graph is built by the body itself: push the arrays that it is built from",
    "_io.": "push the path, or the content of the file",
    "_thread.": "make it on the workers",
    "pandas.": "push its columns as arrays",
}
"""The remedy for a value that cannot be pushed, by the prefix of its type's name."""


@dataclass
class Packed:
    """Described values; ``buffers`` (offset, bytes) stay on the client and are written to shared memory."""

    root: Node
    functions: list[dict[str, Any]]
    classes: list[dict[str, Any]]
    namespaces: list[dict[str, Any]]
    sources: dict[str, str]
    size: int
    buffers: list[tuple[int, memoryview]] = field(default_factory=list)

    def nodes(self) -> Packed:
        """Return it without the buffers: the part that every task receives separately."""
        return dataclasses.replace(self, buffers=[])


def pack(values: Mapping[Any, Any], called: Callable[[Any], str] = str, *, pipelines: bool = False) -> Packed:
    """Return the description of values by name. Contiguous arrays are not copied.

    ``called`` returns the description of a name in errors. With ``pipelines`` datasets are described with
    their sources and functions, and not only those over arrays. Raises InvalidArgumentError for a value that
    cannot be pushed, with the value's name, its type and the remedy.

    >>> build(pack({"x": 3, "names": ["a", "b"]}), memoryview(b""))
    {'x': 3, 'names': ['a', 'b']}
    """
    packer = _Packer(pipelines)
    root = ("dict", [(("plain", name), packer.node(value, called(name))) for name, value in values.items()])
    return Packed(
        root, packer.functions, packer.classes, packer.spaces, packer.sources, packer.size, packer.buffers
    )


def build(packed: Packed, memory: memoryview) -> dict[Any, Any]:
    """Return the values that `pack` described; large arrays are views of ``memory``, as writable as that."""
    found: dict[Any, Any] = _Builder(packed, memory).value(packed.root)
    return found


class _Packer:
    def __init__(self, pipelines: bool = False) -> None:
        self._pipelines = pipelines
        self.buffers: list[tuple[int, memoryview]] = []
        self.size = 0
        self.functions: list[dict[str, Any]] = []
        self.classes: list[dict[str, Any]] = []
        self.spaces: list[dict[str, Any]] = []
        self.sources: dict[str, str] = {}
        self._known: dict[int, Node] = {}  # arrays, functions and classes by id
        self._spaces: dict[int, int] = {}  # by the id of the module's dict
        self._held: list[Any] = []  # objects that must live as long as their ids are used
        self._items = 0
        self._depth = 0

    def node(self, value: Any, path: str) -> Node:
        """Return a value's node; ``path`` is its name in errors."""
        if type(value) in PLAIN or isinstance(value, np.generic):
            return ("plain", value)
        self._depth += 1
        try:
            if self._depth > MOST_DEPTH:
                raise InvalidArgumentError(
                    f"{path} cannot be pushed: it contains itself, or is more than {MOST_DEPTH} deep; push "
                    "its parts"
                )
            return self._node(value, path)
        finally:
            self._depth -= 1

    def _node(self, value: Any, path: str) -> Node:
        kind = type(value)
        if kind in (str, bytes):
            return self._text(value)
        if kind in COLLECTIONS.values():
            self._count(len(value), path)
            if all(type(v) in PLAIN for v in value):
                return ("plain", value)
            # The places in a pipeline are nbdist's own: they say nothing to a user.
            paths = [path if self._pipelines else f"{path}[{i}]" for i in range(len(value))]
            return (kind.__name__, [self.node(*one) for one in zip(value, paths, strict=True)])
        if kind is dict:
            self._count(len(value), path)
            return (
                "dict",
                [
                    (self.node(k, f"a key of {path}"), self.node(v, f"{path}[{k!r:.40}]"))
                    for k, v in value.items()
                ],
            )
        if kind in (np.ndarray, np.memmap):
            return self._array(value, path)
        if isinstance(value, np.ma.MaskedArray):
            return ("masked", self._array(value.data, path), self._array(np.ma.getmaskarray(value), path))
        if isinstance(value, np.dtype):
            return ("plain", value)
        if isinstance(value, types.ModuleType):
            return self._module(value, path)
        if isinstance(value, Dataset):
            return self._dataset(value, path)
        if self._pipelines and kind in PARTS:
            return self._object(value, state_of(value), path)
        if kind is Inner:
            return ("call", self.node(kind, path), [("tuple", [self.node(v, path) for v in value])])
        if isinstance(value, Model):
            return self._model(value, path)
        if kind is functools.partial:
            parts = [self.node(part, path) for part in (value.func, value.args, value.keywords)]
            return ("partial", *parts)
        if kind in (staticmethod, classmethod):
            return ("call", self.node(kind, path), [self.node(value.__func__, path)])
        if kind is types.FunctionType:
            return self._function(value, path)
        if isinstance(value, type):
            return self._class(value, path)
        found = self._of_library(value, path) or _imported(value)
        if found is not None:
            return found
        if isinstance(value, enum.Enum):
            return ("member", self.node(kind, path), value.name)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ("call", self.node(kind, path), [self.node(v, path) for v in value])
        if dataclasses.is_dataclass(value):
            values = {
                f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)
            }
            return self._object(value, values, path)
        raise _refused(value, path, advises=not self._pipelines)

    def _object(self, value: Any, attributes: Mapping[str, Any], path: str) -> Node:
        nodes = [
            (name, self.node(part, path if self._pipelines else f"{path}.{name}"))
            for name, part in attributes.items()
        ]
        return ("object", self.node(type(value), path), nodes)

    def _count(self, items: int, path: str) -> None:
        self._items += items
        if self._items > MOST_ITEMS:
            raise ResourceExhaustedError(
                f"{path} makes more than {MOST_ITEMS:,} values in lists and dicts: push arrays instead"
            )

    def _text(self, value: str | bytes) -> Node:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        if len(data) <= INLINE_BYTES:
            return ("plain", value)
        return (type(value).__name__, self._block(memoryview(data)), len(data))

    def _block(self, data: memoryview) -> int:
        """Add bytes for the shared memory; return their offset."""
        at = -(-self.size // ALIGNMENT) * ALIGNMENT
        self.buffers.append((at, data))
        self.size = at + data.nbytes
        return at

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Node:
        if (known := self._known.get(id(value))) is not None:
            return known
        if value.dtype.hasobject:
            if value.dtype != object:
                raise InvalidArgumentError(
                    f"{path} cannot be pushed: an array of {value.dtype} holds Python objects; push its "
                    "fields"
                )
            self._count(value.size, path)
            items = [self.node(v, f"an item of {path}") for v in value.ravel()]
            return ("objects", value.shape, items)
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        whole = np.asarray(value.T if fortran else value)
        # A view of another array, such as a slice, is copied here; the pages of np.memmap are read later.
        flat = np.ascontiguousarray(whole).reshape(-1)
        data = flat.view(np.uint8).data if flat.nbytes else memoryview(b"")
        place = (value.dtype, value.shape, fortran)
        if flat.nbytes <= INLINE_BYTES:
            node: Node = ("small", bytes(data), *place)
        else:
            node = ("array", self._block(data), *place)
        self._held.append(value)
        self._known[id(value)] = node
        return node

    def _module(self, value: types.ModuleType, path: str) -> Node:
        if value.__name__ == "__main__" or sys.modules.get(value.__name__) is not value:
            raise InvalidArgumentError(
                f"{path} cannot be pushed: module {value.__name__!r} cannot be imported by its name; put it "
                "into a file that the workers can import"
            )
        return ("module", value.__name__)

    def _dataset(self, value: Dataset, path: str) -> Node:
        if self._pipelines:
            stage, salt = pipeline_of(value)
            return ("pipeline", self.node(stage, path), salt)
        try:
            steps, arrays = describe(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path} cannot be pushed: {error}") from None
        return ("dataset", steps, [self._array(array, path) for array in arrays])

    def _model(self, value: Model, path: str) -> Node:
        if not value.weights:
            raise InvalidArgumentError(
                f"{path} cannot be pushed: the model has no weights yet; push a function that makes it"
            )
        weights = [self._array(np.asarray(w), path) for w in value.get_weights()]
        return ("model", value.to_config(), weights)

    # Frames.

    def _of_library(self, value: Any, path: str) -> Node | None:
        """Return the node of a frame of pandas or polars, None for other values."""
        library = type(value).__module__.partition(".")[0]
        if library == "polars":
            polars = sys.modules["polars"]
            if isinstance(value, (polars.DataFrame, polars.Series)):
                stream = io.BytesIO()
                series = isinstance(value, polars.Series)
                (value.to_frame() if series else value).write_ipc(stream)
                data = stream.getbuffer()
                return ("polars", self._block(data), data.nbytes, series)
        if library == "pandas":
            pandas = sys.modules["pandas"]
            if isinstance(value, pandas.DataFrame):
                parts = [
                    self._column(value.iloc[:, i], f"column {label!r:.40} of {path}")
                    for i, label in enumerate(value.columns)
                ]
                return ("frame", self._index(value.columns, path), self._index(value.index, path), parts)
            if isinstance(value, pandas.Series):
                name = self.node(value.name, f"the name of {path}")
                return ("series", name, self._index(value.index, path), self._column(value, path))
            if isinstance(value, pandas.Index):
                return self._index(value, path)
        return None

    def _index(self, index: Any, path: str) -> Node:
        pandas, path = sys.modules["pandas"], f"the index of {path}"
        names = [self.node(name, path) for name in index.names]
        if isinstance(index, pandas.RangeIndex):
            return ("range_index", (index.start, index.stop, index.step), names)
        if isinstance(index, pandas.MultiIndex):
            levels = [index.get_level_values(i) for i in range(index.nlevels)]
            return ("multi_index", [self._column(level.to_series(), path) for level in levels], names)
        return ("index", self._column(index.to_series(), path), names)

    def _column(self, series: Any, path: str) -> Node:
        pandas, dtype = sys.modules["pandas"], series.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "biufcmM":
            return self._array(series.to_numpy(), path)
        if isinstance(dtype, pandas.CategoricalDtype):
            codes = self._array(np.asarray(series.cat.codes), path)
            return ("categories", codes, self._index(dtype.categories, path), bool(dtype.ordered))
        if isinstance(dtype, pandas.DatetimeTZDtype):
            utc = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            return ("zoned", self._array(utc, path), str(dtype.tz))
        missing = series.isna().to_numpy(dtype=bool)
        if isinstance(dtype, pandas.api.extensions.ExtensionDtype) and isinstance(
            getattr(dtype, "numpy_dtype", None), np.dtype
        ):
            values = series.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.numpy_dtype.type(0))
            return ("masked_values", self._array(values, path), self._array(missing, path), str(dtype))
        if isinstance(dtype, (np.dtypes.ObjectDType, pandas.StringDtype)):
            texts = ["" if absent else value for value, absent in zip(series, missing, strict=True)]
            if all(type(text) is str for text in texts):
                data = [text.encode("utf-8", "surrogatepass") for text in texts]
                lengths = np.fromiter(map(len, data), np.int64, len(data))
                whole = self._text(b"".join(data))
                kind = "str" if isinstance(dtype, pandas.StringDtype) else "object"
                return ("texts", whole, self._array(lengths, path), self._array(missing, path), kind)
            self._count(len(series), path)
            return ("objects", (len(series),), [self.node(v, f"a value of {path}") for v in series])
        raise InvalidArgumentError(
            f"{path} cannot be pushed: its dtype is {dtype}; convert it, as by .to_numpy() or .astype(str)"
        )

    # Code.

    def _function(self, value: types.FunctionType, path: str) -> Node:
        if (known := self._known.get(id(value)) or _imported(value)) is not None:
            return known
        node = self._known[id(value)] = ("function", len(self.functions))
        self._held.append(value)
        record: dict[str, Any] = {}
        self.functions.append(record)
        name = value.__name__
        inner = f"{path}, which uses" if path == name else f"{path} ({name}), which uses"
        closure = {}
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with_value = _contents(cell)
            closure[variable] = [self.node(v, f"{inner} {variable}") for v in with_value]
        record |= {
            "code": marshal.dumps(value.__code__),
            "name": name,
            "qualname": value.__qualname__,
            "doc": value.__doc__,
            "space": self._space(value.__globals__),
            "defaults": self.node(value.__defaults__, f"a default of {path}"),
            "kwdefaults": self.node(value.__kwdefaults__, f"a default of {path}"),
            "closure": closure,
            "dict": [(k, self.node(v, f"{path}.{k}")) for k, v in value.__dict__.items()],
            "uses": self._build(value.__code__, value.__globals__, inner),
        }
        self._source(value.__code__.co_filename)
        return node

    def _class(self, value: type, path: str) -> Node:
        if (known := self._known.get(id(value)) or _imported(value)) is not None:
            return known
        source, line, file = _class_source(value, path)
        node = self._known[id(value)] = ("class", len(self.classes))
        self._held.append(value)
        record: dict[str, Any] = {}
        self.classes.append(record)
        code = compile("\n" * (line - 1) + source, file, "exec", dont_inherit=True)
        namespace = vars(sys.modules[value.__module__])
        record |= {
            "code": marshal.dumps(code),
            "name": value.__name__,
            "space": self._space(namespace),
            "uses": self._build(code, namespace, f"{path}, which uses", {value.__name__}),
            "first": [name for name in global_names(code, called=False) if name in namespace],
        }
        self._source(file)
        return node

    def _space(self, namespace: dict[str, Any]) -> int:
        if id(namespace) not in self._spaces:
            self._spaces[id(namespace)] = len(self.spaces)
            self._held.append(namespace)
            self.spaces.append({"name": namespace.get("__name__", "__main__"), "values": {}})
        return self._spaces[id(namespace)]

    def _build(
        self, code: types.CodeType, namespace: dict[str, Any], path: str, own: set[str] | None = None
    ) -> list[str]:
        """Add nodes for the globals that code uses; return their names."""
        values = self.spaces[self._space(namespace)]["values"]
        uses = []
        for name in global_names(code):
            if name not in namespace or name in (own or ()):
                continue
            uses.append(name)
            if name not in values:
                values[name] = ("plain", None)  # a recursive function is being described already
                values[name] = self.node(namespace[name], f"{path} {name}")
        return uses

    def _source(self, file: str) -> None:
        """Add the lines of a cell, so that tracebacks show them."""
        if file not in self.sources:
            text = "".join(linecache.getlines(file))
            if sum(map(len, self.sources.values())) + len(text) <= MOST_SOURCE:
                self.sources[file] = text


def global_names(code: types.CodeType, called: bool = True) -> list[str]:
    """Return the global names that code and the code within it load, in the order of their first use.

    Without ``called`` those that only functions within it load are left out: it runs without them.

    >>> source = compile("sorted(rows, key=lambda x: g(x))", "<cell>", "exec")
    >>> global_names(source), global_names(source, called=False)
    (['sorted', 'rows', 'g'], ['sorted', 'rows'])
    """
    found: dict[str, None] = {}
    stored = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_NAME", "STORE_GLOBAL")}
    for instruction in dis.get_instructions(code):
        loads = instruction.opname in ("LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
        if loads or (instruction.opname == "LOAD_NAME" and instruction.argval not in stored):
            found[instruction.argval] = None
    for constant in code.co_consts:
        if not isinstance(constant, types.CodeType):
            continue
        # The body of a class has no fast locals; a comprehension runs as part of its function.
        runs = not constant.co_flags & inspect.CO_OPTIMIZED or constant.co_name in COMPREHENSIONS
        if called or runs:
            found |= dict.fromkeys(global_names(constant, called))
    return list(found)


def _contents(cell: types.CellType) -> list[Any]:
    """Return a list with the value of a closure cell; [] if the variable has no value yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _imported(value: Any) -> Node | None:
    """Return the node of an object that tasks can import from its module by name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, np.ufunc):
        module, name = "numpy", value.__name__
    if isinstance(value, types.BuiltinFunctionType) and module is None:
        module = "builtins"
    if not isinstance(module, str) or not isinstance(name, str) or module in ("__main__", "__mp_main__"):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return ("import", module, name) if found is value else None


def _class_source(value: type, path: str) -> tuple[str, int, str]:
    """Return a class's source with its decorators, its first line and its file: a cell, or a script."""
    inside = "<locals>" in value.__qualname__ or "." in value.__qualname__
    files = {
        function.__code__.co_filename: None
        for function in vars(value).values()
        if isinstance(function, types.FunctionType) and function.__module__ == value.__module__
    }
    if not inside:
        main = getattr(sys.modules.get(value.__module__), "__file__", None)
        cells = [
            name for name in linecache.cache if "ipykernel_" in name or name.startswith("<ipython-input")
        ]
        for file in (*files, *([main] if main else ()), *reversed(cells)):
            text = "".join(linecache.getlines(file))
            if f"class {value.__name__}" not in text:
                continue
            try:
                tree = ast.parse(text)
            except SyntaxError:
                continue
            for node in reversed(tree.body):
                if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno]), first, file
    raise InvalidArgumentError(
        f"{path} cannot be pushed: class {value.__qualname__} has no source of its own; define it by a class "
        "statement at the top of a cell or module, not inside of a function"
    )


def _refused(value: Any, path: str, advises: bool = True) -> InvalidArgumentError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    hint = next((hint for start, hint in HINTS.items() if kind.startswith(start)), "")
    if not hint and advises:
        hint = f"push the values that it is made of, and make the {type(value).__name__} on the workers"
    return InvalidArgumentError(f"{path} cannot be pushed: it is of type {kind}{hint and f'; {hint}'}")


class _Builder:
    """Builds values from nodes; each function and class once."""

    def __init__(self, packed: Packed, memory: memoryview) -> None:
        self._packed, self._memory = packed, memory
        self._functions: dict[int, types.FunctionType] = {}
        self._classes: dict[int, Any] = {}
        self._spaces: list[dict[str, Any]] = [
            {"__name__": space["name"], "__builtins__": builtins.__dict__} for space in packed.namespaces
        ]
        self._built: set[tuple[int, str]] = set()
        for file, text in packed.sources.items():
            if file not in linecache.cache and text:
                linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)

    def value(self, node: Node) -> Any:
        """Return a node's value."""
        kind, *parts = node
        if kind == "plain":
            value = parts[0]
            return value.copy() if isinstance(value, (list, set)) else value
        if kind in COLLECTIONS:
            return COLLECTIONS[kind](map(self.value, *parts))
        make: Callable[..., Any] = getattr(self, f"_{kind}")
        return make(*parts)

    def _all(self, nodes: list[Node]) -> Iterator[Any]:
        return map(self.value, nodes)

    def _dict(self, items: list[tuple[Node, Node]]) -> dict[Any, Any]:
        return {self.value(key): self.value(value) for key, value in items}

    def _str(self, at: int, size: int) -> str:
        return str(self._memory[at : at + size], "utf-8", "surrogatepass")

    def _bytes(self, at: int, size: int) -> bytes:
        return bytes(self._memory[at : at + size])

    def _small(self, data: bytes, dtype: Any, shape: tuple[int, ...], fortran: bool) -> Any:
        return _shaped(np.frombuffer(data, np.uint8), dtype, shape, fortran)

    def _array(self, at: int, dtype: Any, shape: tuple[int, ...], fortran: bool) -> Any:
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        return _shaped(np.frombuffer(self._memory, np.uint8, size, at), dtype, shape, fortran)

    def _objects(self, shape: tuple[int, ...], items: list[Node]) -> Any:
        flat = np.empty(len(items), object)
        for i, item in enumerate(self._all(items)):
            flat[i] = item
        return flat.reshape(shape)

    def _masked(self, data: Node, mask: Node) -> Any:
        return np.ma.MaskedArray(self.value(data), self.value(mask), copy=False)

    def _module(self, name: str) -> types.ModuleType:
        found: types.ModuleType = _import(name)
        return found

    def _import(self, module: str, name: str) -> Any:
        found: Any = _import(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def _pipeline(self, stage: Node, salt: tuple[int, ...]) -> Dataset:
        return from_pipeline(self.value(stage), salt)

    def _dataset(self, steps: Any, arrays: list[Node]) -> Dataset:
        return rebuild(steps, list(self._all(arrays)))

    def _model(self, config: Any, weights: list[Node]) -> Any:
        return outcome.unpack({"kind": "model", "config": config, "weights": list(self._all(weights))})

    def _partial(self, function: Node, args: Node, named: Node) -> Any:
        return functools.partial(self.value(function), *self.value(args), **self.value(named))

    def _member(self, kind: Node, name: str) -> Any:
        return self.value(kind)[name]

    def _call(self, kind: Node, items: list[Node]) -> Any:
        return self.value(kind)(*self._all(items))

    def _object(self, kind: Node, values: list[tuple[str, Node]]) -> Any:
        made = object.__new__(self.value(kind))
        for name, node in values:
            object.__setattr__(made, name, self.value(node))  # also where the dataclass is frozen
        return made

    # Frames.

    def _polars(self, at: int, size: int, series: bool) -> Any:
        polars = _import("polars")
        frame = polars.read_ipc(io.BytesIO(self._memory[at : at + size]))
        return frame.to_series() if series else frame

    def _frame(self, columns: Node, index: Node, parts: list[Node]) -> Any:
        pandas = _import("pandas")
        frame = pandas.DataFrame(dict(enumerate(self._all(parts))), index=self.value(index), copy=False)
        frame.columns = self.value(columns)
        return frame

    def _series(self, name: Node, index: Node, part: Node) -> Any:
        found = _import("pandas").Series(self.value(part), index=self.value(index), copy=False)
        found.name = self.value(name)
        return found

    def _range_index(self, bounds: tuple[int, int, int], names: list[Node]) -> Any:
        return _import("pandas").RangeIndex(*bounds, name=self.value(names[0]))

    def _multi_index(self, levels: list[Node], names: list[Node]) -> Any:
        return _import("pandas").MultiIndex.from_arrays(list(self._all(levels)), names=list(self._all(names)))

    def _index(self, part: Node, names: list[Node]) -> Any:
        return _import("pandas").Index(self.value(part), name=self.value(names[0]))

    def _categories(self, codes: Node, categories: Node, ordered: bool) -> Any:
        return _import("pandas").Categorical.from_codes(self.value(codes), self.value(categories), ordered)

    def _zoned(self, array: Node, zone: str) -> Any:
        pandas = _import("pandas")
        return pandas.DatetimeIndex(self.value(array)).tz_localize("UTC").tz_convert(zone).array

    def _masked_values(self, values: Node, missing: Node, dtype: str) -> Any:
        pandas = _import("pandas")
        found = pandas.array(self.value(values).copy(), dtype=dtype)
        found[self.value(missing)] = pandas.NA
        return found

    def _texts(self, whole: Node, lengths: Node, missing: Node, dtype: str) -> Any:
        pandas = _import("pandas")
        data, ends = self.value(whole), np.cumsum(self.value(lengths)).tolist()
        texts: list[Any] = [
            data[start:end].decode("utf-8", "surrogatepass")
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        for i in np.flatnonzero(self.value(missing)).tolist():
            texts[i] = None
        return pandas.Series(texts, dtype=dtype).array

    # Code.

    def _function(self, number: int) -> types.FunctionType:
        if number in self._functions:
            return self._functions[number]
        record = self._packed.functions[number]
        code = marshal.loads(record["code"])
        cells = {name: types.CellType() for name in record["closure"]}
        space = self._spaces[record["space"]]
        found = types.FunctionType(code, space, record["name"], None, tuple(cells.values()))
        self._functions[number] = found
        found.__qualname__, found.__doc__ = record["qualname"], record["doc"]
        for name, contents in record["closure"].items():
            for node in contents:
                cells[name].cell_contents = self.value(node)
        found.__defaults__, found.__kwdefaults__ = map(self.value, (record["defaults"], record["kwdefaults"]))
        found.__dict__.update((name, self.value(node)) for name, node in record["dict"])
        self._build_used(record)
        return found

    def _class(self, number: int) -> Any:
        if number not in self._classes:
            record = self._packed.classes[number]
            space = self._spaces[record["space"]]
            self._build_first(record)
            self._build_used(record)
            if number not in self._classes:  # a global that it uses may use the class
                exec(marshal.loads(record["code"]), space)
                self._classes[number] = space[record["name"]]
        return self._classes[number]

    def _build_first(self, record: Mapping[str, Any]) -> None:
        """Build the bases (also bases that use the class) and the decorators of a class statement."""
        number = record["space"]
        for name in record["first"]:
            if name not in self._spaces[number] and name in self._packed.namespaces[number]["values"]:
                self._built.add((number, name))
                self._spaces[number][name] = self.value(self._packed.namespaces[number]["values"][name])

    def _build_used(self, record: Mapping[str, Any]) -> None:
        number = record["space"]
        nodes = self._packed.namespaces[number]["values"]
        for name in record["uses"]:
            if (number, name) not in self._built:
                self._built.add((number, name))
                self._spaces[number][name] = self.value(nodes[name])


def _shaped(data: Any, dtype: Any, shape: tuple[int, ...], fortran: bool) -> Any:
    found = data.view(dtype) if data.size else np.empty(0, dtype)
    found = found.reshape(shape[::-1]).T if fortran else found.reshape(shape)
    found.flags.writeable = False  # the others read the same memory; small arrays are treated alike
    return found


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidArgumentError(
            f"a pushed value needs module {name!r}, which this task cannot import ({error}); install it "
            "there, or put its folder on PYTHONPATH before the cluster starts"
        ) from error
