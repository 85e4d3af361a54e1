"""Makes .venv-colab: an environment with the versions of Google Colab, for tests.

    python scripts/colab_environment.py     # does nothing if it is there, and as new as what it is made from

pip resolves nbdist with the versions of `colab.txt`, as it would there: a lower bound of pyproject.toml that
is above one of them is an error. PyTorch, which is big, is not installed twice: the packages of the calling
environment are found behind those of the new one.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-colab"
PYTHON = FOLDER / "bin" / "python"
VERSIONS = ROOT / "scripts" / "colab.txt"
MADE_FROM = (VERSIONS, ROOT / "pyproject.toml", Path(__file__))
BESIDE = ("notebook", "nbclient")
"""What opens and runs notebooks there, beside nbdist's own requirements."""


def main() -> None:
    with (ROOT / ".venv-colab.stamp").open("a+") as stamp:
        fcntl.flock(stamp, fcntl.LOCK_EX)
        if is_current():
            return
        shutil.rmtree(FOLDER, ignore_errors=True)
        make()
        made().write_text("")


def made() -> Path:
    """Return the file that is written when the environment is whole."""
    return FOLDER / "made"


def is_current() -> bool:
    """Return whether the environment is whole, and newer than what it was made from."""
    return made().exists() and all(made().stat().st_mtime >= path.stat().st_mtime for path in MADE_FROM)


def make() -> None:
    """Make the environment anew."""
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--upgrade", "pip>=24"], check=True)
    subprocess.run([*pip, "--constraint", str(VERSIONS), "--editable", f"{ROOT}[data]", *BESIDE], check=True)
    found = subprocess.run(
        [str(PYTHON), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    Path(found.stdout.strip(), "zz_behind.pth").write_text(sysconfig.get_path("purelib") + "\n")


if __name__ == "__main__":
    main()
