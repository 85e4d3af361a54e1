"""The public names: they load, have docstrings, and are imported lazily."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import nbdist as nb
from nbdist.errors import NbdistError

PUBLIC = sorted(set(nb.__all__) - {"__version__", "task"})
HEAVY = (
    "numpy", "matplotlib", "ipywidgets", "anywidget", "sklearn", "ipyparallel", "zmq", "IPython", "pytest",
    "hypothesis",
)  # fmt: skip


def python(code: str) -> str:
    """Return the output of code in a fresh interpreter."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads(name: str) -> None:
    value = getattr(nb, name)
    assert getattr(nb, name) is value
    assert name in dir(nb)


@pytest.mark.parametrize(
    "package", [nb, nb.estimator, nb.summary, nb.train], ids=lambda package: package.__name__
)
def test_the_stub_of_a_package_names_what_it_loads(package: ModuleType) -> None:
    """Editors and type checkers read it; a name without ``as`` is not public there: nb.task is a Task."""
    named = set()
    for node in ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            [one] = node.names
            assert one.asname in (one.name, None)
            assert one.asname or one.name == "Task"
            named |= {one.asname} - {None}
            assert not one.asname or getattr(import_module(str(node.module)), one.name) is getattr(
                package, one.name
            )
    assert named == set(package.__all__) - {"__version__", "task"}


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield every public class, function and module with its name, and public methods of the classes."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(f"nb.{name}", getattr(nb, name)) for name in PUBLIC]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen or not getattr(value, "__module__", getattr(value, "__name__", "")).startswith(
            "nbdist"
        ):
            continue
        seen.add(id(value))
        if isinstance(value, ModuleType):
            yield name, value
            names = getattr(value, "__all__", [n for n in vars(value) if not n.startswith("_")])
            waiting += [(f"{name}.{n}", getattr(value, n)) for n in names]
        elif inspect.isclass(value):
            yield name, value
            for member, attribute in vars(value).items():
                inner = getattr(attribute, "__func__", attribute)
                if isinstance(inner, property):
                    inner = inner.fget
                if not member.startswith(("_", "test_")) and inspect.isfunction(inner):
                    yield f"{name}.{member}", inner
        elif callable(value):
            yield name, value


def test_every_public_name_has_a_docstring() -> None:
    found = dict(public_objects())
    assert len(found) > 150
    silent = [name for name, value in found.items() if not (value.__doc__ or "").strip()]
    assert not silent, f"without a docstring: {silent}"


def test_public_modules_list_their_names() -> None:
    """Without the list, what they import would be public, too. The names of `nb.errors` are its classes."""
    modules = [value for _, value in public_objects() if isinstance(value, ModuleType)]
    assert [m.__name__ for m in modules if not hasattr(m, "__all__")] == ["nbdist.errors"]


def test_docstrings_are_sentences() -> None:
    odd = []
    for name, value in public_objects():
        first = (value.__doc__ or "").strip().split("\n\n")[0].strip()
        if (
            not isinstance(value, ModuleType)
            and not first.endswith((".", ":", "!", "?"))
            and ">>>" not in first
        ):
            odd.append(name)
    assert not odd, f"the first paragraph is not a sentence: {odd}"


def test_every_error_is_public_and_an_nbdist_error() -> None:
    kinds = [e for e in vars(nb.errors).values() if inspect.isclass(e) and issubclass(e, Exception)]
    assert len(kinds) >= 14
    for kind in kinds:
        assert issubclass(kind, NbdistError)
        assert kind.__name__ in str(nb.errors.__doc__)
    assert issubclass(nb.errors.InvalidArgumentError, ValueError)
    assert str(nb.errors.NotFoundError("no run 'x'")) == "no run 'x'"
    assert str(nb.errors.MissingExtra("gpu", "GPUs")) == 'pip install "nbdist[gpu]" (needed for GPUs)'
    assert str(nb.errors.MissingExtra("", packages="pytest hypothesis")) == "pip install pytest hypothesis"


def test_every_module_has_a_docstring() -> None:
    silent = []
    for found in pkgutil.walk_packages(nb.__path__, "nbdist."):
        if not found.name.endswith("__main__") and not import_module(found.name).__doc__:
            silent.append(found.name)
    assert not silent


def test_the_error_for_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(AttributeError, match=r"module 'nbdist' has no name 'Sesion'; it has .*Session"):
        nb.Sesion  # noqa: B018
    assert not hasattr(nb, "__path_of_nothing__")


def test_the_task_is_the_current_one() -> None:
    with pytest.raises((NbdistError, AttributeError), match="this process is not a task of a cluster"):
        nb.task  # noqa: B018


def test_importing_it_imports_nothing_heavy() -> None:
    code = f"import sys, nbdist; print([n for n in {HEAVY} if n in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.processes
@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_contracts_without_pytest_say_what_to_install(missing: str) -> None:
    code = f"""
import sys; sys.modules[{missing!r}] = None
import inspect, nbdist as nb
try: nb.testing
except nb.errors.MissingExtra as error: print(error)
print("testing" in dir(nb), len(inspect.getmembers(nb)) > 50)
"""
    assert python(code).split("\n") == [
        "pip install pytest hypothesis (needed for nbdist.testing)",
        "False True",
    ]


@pytest.mark.processes
def test_modules_of_engines_import_no_front_end() -> None:
    code = """
import sys, nbdist
for module in ("nn", "optim", "data", "train", "distribute", "Session", "gradients"):
    getattr(nbdist, module)
    for name in ("matplotlib", "ipywidgets", "anywidget", "sklearn", "IPython", "cupy"):
        assert name not in sys.modules, f"{module} imports {name}"
"""
    assert python(code) == ""


@pytest.mark.processes
def test_what_runs_on_an_engine_imports_no_front_end() -> None:
    code = (
        "import sys, nbdist.run.task.body, nbdist.cluster.task_setup; "
        "print([n for n in sys.modules if n in ('matplotlib', 'ipywidgets', 'anywidget', 'sklearn') "
        "or n.startswith('nbdist.ui')])"
    )
    assert python(code) == "[]"


@pytest.mark.processes
def test_event_files_import_no_framework() -> None:
    code = (
        "import sys; from nbdist.metrics.event_file import protos; protos(); "
        "print([n for n in ('torch', 'boto3', 'tensorboardX') if n in sys.modules]); "
        "sys.modules['torch'] = None; "  # tensorboardX uses it if it is installed: an import of 3 s
        "import tensorboardX.summary as s; print(isinstance(s.scalar('x', 1), protos().Summary))"
    )
    assert python(code).split("\n") == ["[]", "True"]


@pytest.mark.processes
def test_the_first_lesson_in_one_process() -> None:
    code = """
import numpy as np, nbdist as nb
with nb.Graph().as_default() as graph, nb.name_scope("first"):
    x = nb.placeholder(np.float32, (None,), name="x")
    w = nb.Variable(np.float32(2.0), name="w")
    y = np.sum(w * x * nb.constant(np.float32(3.0)))
    (g,) = nb.gradients(y, [w])
    start = nb.global_variables_initializer()
with nb.Session(graph=graph) as session:
    session.run(start)
    print(*session.run([y, g], {x: [1.0, 2.0]}), w.name)
"""
    assert python(code) == "18.0 9.0 first/w"


@pytest.mark.processes
def test_modules_of_a_lazy_package_are_attributes() -> None:
    code = "import nbdist as nb; print(nb.train.context.__name__); nb.train.nothing"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout == "nbdist.train.context\n"
    assert "module 'nbdist.train' has no name 'nothing'; it has CSVLogger, Callback, " in ended.stderr


@pytest.mark.processes
def test_names_are_found_in_an_archive(tmp_path: Path) -> None:
    folder = Path(str(nb.__file__)).parent
    with zipfile.ZipFile(tmp_path / "nbdist.zip", "w") as archive:
        for name in ("__init__.py", "__init__.pyi", "stubs.py", "errors.py"):
            archive.write(folder / name, f"nbdist/{name}")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'nbdist.zip')!r}); import nbdist; nbdist.errors"
    subprocess.run([sys.executable, "-c", code], check=True)
