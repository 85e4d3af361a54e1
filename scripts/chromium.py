"""Installs Chromium and iproute2, which `make test` uses, if they are missing and the user is root.

Without root, a missing Chromium is an error; without `ip` the tests on two hosts are skipped.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = {"chromium": "chromium", "ip": "iproute2"}  # by program


def main() -> None:
    missing = [package for program, package in PACKAGES.items() if not shutil.which(program)]
    if not missing:
        return
    if not (hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")):
        if "chromium" not in missing:
            return
        sys.exit(
            "the browser tests need a `chromium` on the PATH; on Debian or Ubuntu: apt-get install chromium"
        )
    print(f"installing {', '.join(missing)} for the tests", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", *missing]):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


main()
