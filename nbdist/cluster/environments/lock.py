"""The notebook's own lock: the exact versions of its packages, and the wheels that are sent to a host.

    lock = read_lock()                       # what this process can import
    lock.requirements, lock.wheels, lock.hash

A package that pip has taken from an index is a requirement, NAME==VERSION, unless a folder of wheels has it.
What is not on an index is packed into a wheel here, see `pack.py`: nbdist itself, and packages that were
installed from a folder, a file or a repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from itertools import islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nbdist.cluster.environments.pack import build_editable, pack_installed, pack_nbdist
from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.json_values import mapping, object_in, text

# Settings of uv, and those of pip that mean the same.
INDEX_VARIABLES = {
    "UV_INDEX": "",
    "UV_DEFAULT_INDEX": "",
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
    "UV_INDEX_STRATEGY": "",
}


@dataclass(frozen=True)
class Lock:
    """What an environment has.

    - ``python``: the version, such as "3.11.7"; ``suffix`` is "t" for one without a GIL
    - ``requirements``: packages that come from an index, as "numpy==2.4.6"
    - ``wheels``: packages that are sent; those of a folder the user gave
    - ``local``: wheels that were packed here, by their content
    - ``variables``: settings of uv that say where the index is
    """

    python: str
    requirements: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    local: tuple[Path, ...] = ()
    suffix: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """The name of the environment: of its versions, and of the content of what was packed here."""
        names = sorted([*self.requirements, *map(requirement_of, self.wheels)])
        contents = sorted(digest(path) for path in self.local)
        told = json.dumps([self.python, self.suffix, platform.machine(), names, contents])
        return hashlib.sha256(told.encode()).hexdigest()[:20]


def read_lock(
    wheels: str | Path | None, folder: Path, report: Callable[[str], object] = lambda line: None
) -> Lock:
    """Return the lock of this process's environment.

    - ``wheels``: a folder with wheels, which are sent instead of taken from an index
    - ``folder``: where packed wheels are put, and found again
    - ``report``: called with a line of text before something that takes long

    Raises InvalidArgumentError for a folder that is not there or has no wheel that this Python takes, and
    FailedPreconditionError for a package that cannot be packed.
    """
    offered = wheels_in(Path(wheels).expanduser()) if wheels else {}
    requirements, sent, local = [], [], [pack_nbdist(folder)]
    for name, one in sorted(installed().items()):
        if name == "nbdist":
            continue
        if found := offered.get((name, normal(one.version))):
            sent.append(found)
        elif (origin := origin_of(one)) is None:
            requirements.append(f"{name}=={one.version}")
        elif mapping(origin.get("dir_info")).get("editable"):
            local.append(build_editable(one, local_path(origin), folder, report))
        else:
            local.append(pack_installed(one, folder))
    variables = {
        name: os.environ.get(name) or os.environ.get(pips, "") for name, pips in INDEX_VARIABLES.items()
    }
    return Lock(
        platform.python_version(),
        tuple(requirements),
        tuple(sent),
        tuple(local),
        "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "",
        {name: value for name, value in variables.items() if value},
    )


def installed() -> dict[str, Distribution]:
    """Return what this process can import, by its canonical name; the first one on the path counts."""
    from packaging.utils import canonicalize_name

    found: dict[str, Distribution] = {}
    for one in distributions():
        if one.name:
            found.setdefault(canonicalize_name(one.name), one)
    return found


def normal(version: str) -> str:
    """Return a version as the names of wheels have it.

    >>> normal("1.0-post1"), normal("not one")
    ('1.0.post1', 'not one')
    """
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(version))
    except InvalidVersion:
        return version


def origin_of(one: Distribution) -> Mapping[str, object] | None:
    """Return where pip has taken a package from that is not from an index, None for one that is.

    A wheel's address is none: conda and build farms leave paths that exist on their own hosts only.
    """
    found = object_in((one.read_text("direct_url.json") or "").encode())
    url = text(found.get("url"))
    if not url:
        return None
    if url.startswith("file:") and not local_path(found).exists():
        return None
    return found


def local_path(origin: Mapping[str, object]) -> Path:
    """Return the path of a ``file:`` address.

    >>> str(local_path({"url": "file:///home/ann/my%20code"}))
    '/home/ann/my code'
    """
    return Path(unquote(urlsplit(text(origin.get("url"))).path))


def wheels_in(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the wheels of a folder that this Python takes, by name and version; the best one of each."""
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    if not folder.is_dir():
        raise InvalidArgumentError(f"wheels is a folder with wheels, and {str(folder)!r} is none")
    order = {tag: number for number, tag in enumerate(sys_tags())}
    best: dict[tuple[str, str], tuple[int, Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if places := [order[tag] for tag in tags if tag in order]:
            key = (str(name), str(version))
            best[key] = min(best.get(key, (sys.maxsize, path)), (min(places), path))
    if not best:
        raise InvalidArgumentError(
            f"wheels: {str(folder)!r} has no wheel for Python {platform.python_version()} on "
            f"{platform.machine()}; fill it with `pip download --no-deps -d {folder} NAME==VERSION`"
        )
    return {key: path for key, (_, path) in best.items()}


def requirement_of(wheel: Path) -> str:
    """Return the requirement that a wheel of an index fulfils.

    >>> requirement_of(Path("numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl"))
    'numpy==2.4.6'
    """
    from packaging.utils import parse_wheel_filename

    name, version, *_ = parse_wheel_filename(wheel.name)
    return f"{name}=={version}"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The modules of the project.

MOST_MODULES, MOST_MODULE_BYTES = 2_000, 32 << 20
NOT_SOURCES = {"node_modules", "site-packages", "__pycache__", "build", "dist"}


def project_modules(folder: Path) -> list[Path]:
    """Return the Python files below a folder, sorted.

    Hidden folders, environments (pyvenv.cfg) and links are left out, and what builds have made. Raises
    InvalidArgumentError for more than 2,000 files or 32 MiB, NotFoundError for none.
    """
    found = sorted(islice(_sources(folder), MOST_MODULES + 1))
    size = sum(path.stat().st_size for path in found)
    if len(found) > MOST_MODULES or size > MOST_MODULE_BYTES:
        raise InvalidArgumentError(
            f"sync_modules: {folder} has more than {MOST_MODULES:,} Python files, or "
            f"{MOST_MODULE_BYTES >> 20} MiB of them, which is the most that is sent; start from the "
            "project's own folder, or install the modules here as a package (pip install -e)"
        )
    if not found:
        raise NotFoundError(f"sync_modules: {folder} has no Python files; start from the project's folder")
    return found


def _sources(folder: Path) -> Iterable[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in NOT_SOURCES
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        for name in files:
            path = Path(place, name)
            if name.endswith(".py") and path.is_file() and not path.is_symlink():
                yield path
