"""Makes wheels of packages that are on no index. Each has the same bytes whenever the package is the same.

nbdist is packed from the code that runs here. A package that pip has installed from a folder, a file or a
repository is packed from its installed files, without a build. Only an editable one is built, by uv, and
built again when a file of its project has changed.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from nbdist.errors import FailedPreconditionError
from nbdist.text import clip

OLDEST = (1980, 1, 1, 0, 0, 0)  # the time of all files, so that equal files make equal wheels
BUILD_SECONDS = 600.0
NOT_PACKED = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}  # pip writes them anew
SKIPPED = {"__pycache__", "node_modules"}


def pack_nbdist(folder: Path) -> Path:
    """Return a wheel of the nbdist that runs here; FailedPreconditionError if it is not installed."""
    import nbdist.cluster

    package = Path(nbdist.cluster.__file__).parent.parent
    try:
        known = distribution("nbdist")
    except PackageNotFoundError:
        raise FailedPreconditionError(
            f"the nbdist in {package} is not installed, so its version is unknown: run `pip install -e "
            f"{package.parent}` here"
        ) from None
    info = f"nbdist-{known.version}.dist-info"
    files = {
        f"nbdist/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and not SKIPPED & set(path.parts)
    }
    metadata, points = known.read_text("METADATA") or "", known.read_text("entry_points.txt")
    files[f"{info}/METADATA"] = metadata.encode()
    if points:
        files[f"{info}/entry_points.txt"] = points.encode()
    tag = "py3-none-any"
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: nbdist\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    )
    return write_wheel(folder, f"nbdist-{known.version}-{tag}.whl", info, files)


def pack_installed(one: Distribution, folder: Path) -> Path:
    """Return a wheel of the files that pip has installed for a package.

    Raises FailedPreconditionError if they are not known.
    """
    listed = [PurePosixPath(path) for path in one.files or ()]
    infos = {path.parts[0] for path in listed if path.parts[0].endswith(".dist-info")}
    about = one.read_text("WHEEL")
    if len(infos) != 1 or about is None:
        raise FailedPreconditionError(
            f"{one.name} {one.version} was installed from {where(one)}, and its files are not known: make "
            f"its wheel with `pip wheel --no-deps -w FOLDER {where(one)}`, and start with --wheels FOLDER"
        )
    (info,) = infos
    files = {}
    for path in listed:
        # Programs and data of the environment lie outside; pip makes the programs of entry points anew.
        if path.is_absolute() or ".." in path.parts or path.suffix == ".pyc" or "__pycache__" in path.parts:
            continue
        if path.parts[0] == info and path.name in NOT_PACKED:
            continue
        files[str(path)] = Path(str(one.locate_file(str(path)))).read_bytes()
    tags = re.findall(r"^Tag: *(\S+)", about, re.MULTILINE) or ["py3-none-any"]
    parts = [tag.split("-") for tag in tags]
    tag = "-".join(".".join(sorted({part[at] for part in parts})) for at in range(3))
    name = re.sub(r"[-_.]+", "_", one.name)
    return write_wheel(folder, f"{name}-{one.version}-{tag}.whl", info, files)


def where(one: Distribution) -> str:
    """Return the address from which a package was installed."""
    found = re.search(r'"url": *"([^"]+)"', one.read_text("direct_url.json") or "")
    return found[1] if found else "an unknown place"


def build_editable(one: Distribution, project: Path, folder: Path, report: Callable[[str], object]) -> Path:
    """Return the wheel of an editable package, built by uv unless the last one was of the same files.

    Raises FailedPreconditionError without uv, and if the build fails.
    """
    place, reason = folder / f"{one.name}-{stamp(project)}", ""
    with held(folder / f"{one.name}.lock"):
        if not (wheels := sorted(place.glob("*.whl"))):
            uv = own_uv()
            if uv is None:
                raise FailedPreconditionError(
                    f"{one.name} is installed from {project}, and this host has no uv to build it: run "
                    "`pip install uv` in the notebook's environment"
                )
            report(f"builds the wheel of {one.name}")
            part = folder / f".{one.name}-{secrets.token_hex(6)}"
            try:
                # Where there is no network, the packages that build it may be installed here.
                for isolation in ((), ("--no-build-isolation",)):
                    if said := _build(uv, project, part, isolation):
                        reason = reason or said
                    else:
                        break
                else:
                    raise FailedPreconditionError(
                        f"{one.name} is installed from {project}, and its wheel could not be built "
                        f"({reason}): see `uv build --wheel {project}`"
                    )
                for old in folder.glob(f"{one.name}-*"):  # of files as they were before
                    shutil.rmtree(old, ignore_errors=True)
                place = folder / f"{one.name}-{stamp(project)}"  # a build may write files
                os.rename(part, place)
            finally:
                shutil.rmtree(part, ignore_errors=True)
            wheels = sorted(place.glob("*.whl"))
    return wheels[0]


def _build(uv: str, project: Path, folder: Path, options: Sequence[str]) -> str:
    """Build the wheel of a project into a folder; return why that failed, "" if it did not."""
    given = ["--wheel", "--python", sys.executable, "--out-dir", str(folder), *options]
    done = subprocess.run(
        [uv, "--no-progress", "build", *given, str(project)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=BUILD_SECONDS,
    )
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    made = not done.returncode and any(folder.glob("*.whl"))
    return "" if made else clip(lines[-1] if lines else "uv printed nothing", 300)


def own_uv() -> str | None:
    """Return the path of this host's uv: on the PATH, or a package of this Python."""
    return shutil.which("uv") or shutil.which("uv", path=sysconfig.get_path("scripts"))


def stamp(project: Path) -> str:
    """Return what changes with the files of a project: their names, sizes and times."""
    told = hashlib.sha256()
    for place, folders, files in os.walk(project):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED | {"build", "dist"}
            and not name.endswith(".egg-info")
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            path = os.path.join(place, name)
            if not name.endswith(".pyc") and not os.path.islink(path):
                status = os.stat(path)
                told.update(
                    f"{os.path.relpath(path, project)} {status.st_size} {status.st_mtime_ns}\n".encode()
                )
    return told.hexdigest()[:20]


def write_wheel(folder: Path, name: str, info: str, files: Mapping[str, bytes]) -> Path:
    """Write a wheel; return its path."""
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, content in files.items():
        found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow((path, f"sha256={found}", len(content)))
    rows.writerow((f"{info}/RECORD", "", ""))
    return write_zip(folder / name, [*files.items(), (f"{info}/RECORD", record.getvalue().encode())])


def write_zip(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write an archive at once, with the same bytes for the same files."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with zipfile.ZipFile(draft, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content in files:
                entry = zipfile.ZipInfo(name, OLDEST)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock of this host; wait while another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
