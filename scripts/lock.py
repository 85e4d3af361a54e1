"""Writes constraints.txt: the versions of all Python packages that `make` installs, as pip resolves them now.

python scripts/lock.py            # then run the tests, and commit the file with the fixes that they need

pip resolves the requirements of the project and its extras in a new virtual environment, and installs
nothing. The versions are those for this Python and this platform, without a local part such as torch's
"+cpu"; a constraint on a package that another platform does not need has no effect there.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXTRAS = ("demo", "test")  # the extras that `make demo`, `make lab` and `make test` install
UNPINNED = "nvidia-cuda-"  # torch with CUDA, which PyPI has, needs other versions of these than torch without


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "constraints.txt")
    output = parser.parse_args().output
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = requirements(project, EXTRAS)
    lines = "\n".join(f"{name}=={version}" for name, version in resolved(wanted))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    head = f"# Written by scripts/lock.py with Python {python} on {sys.platform}; do not edit it.\n"
    output.write_text(f"{head}{lines}\n")
    print(f"{output}: {len(lines.splitlines())} packages")


def requirements(project: dict[str, Any], extras: tuple[str, ...]) -> list[str]:
    """Return the requirements of a pyproject.toml and of some extras, with the extras that they refer to."""
    about = project["project"]
    build = project["build-system"]["requires"]
    found, seen, left = [*about["dependencies"], *build], set(), list(extras)
    while left:
        extra = left.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for one in about["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{about['name']}\[(.*)\]", one)
            if own:
                left += [name.strip() for name in own[1].split(",")]
            else:
                found.append(one)
    return sorted(set(found))


def resolved(wanted: list[str]) -> list[tuple[str, str]]:
    """Return (name, version) of all packages that pip would install into a new environment."""
    with tempfile.TemporaryDirectory(prefix="lock-") as folder:
        python = Path(folder, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--upgrade", "pip>=24"], check=True)
        report = Path(folder, "report.json")
        asked = ["install", "--dry-run", "--ignore-installed", "--report", str(report), *wanted]
        subprocess.run([*pip, *asked], check=True)
        packages = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    versions = {
        re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"].partition("+")[0] for one in packages
    }
    return sorted(found for found in versions.items() if not found[0].startswith(UNPINNED))


if __name__ == "__main__":
    main()
