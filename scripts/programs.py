"""Installs programs that the tests run, if they are missing and the user is root.

python scripts/programs.py g++                                       # for make check
python scripts/programs.py chromium ip sshd slurmctld slurmd qsub    # for make test, in addition

Without root, a missing program is an error; only the tests on several hosts are skipped without theirs.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = {
    "g++": "g++", "chromium": "chromium", "ip": "iproute2", "sshd": "openssh-server",
    "slurmctld": "slurmctld", "slurmd": "slurmd", "qsub": "slurm-wlm-torque",
}  # fmt: skip
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"  # where a user's PATH does not look for daemons
REASONS = {
    "g++": "the tests of GPU kernels run them on the host, compiled with `g++`",
    "chromium": "the browser tests need a `chromium` on the PATH",
}


def found(program: str) -> bool:
    path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM}"
    return shutil.which(program, path=path) is not None


def main() -> None:
    missing = [program for program in sys.argv[1:] if not found(program)]
    if not missing:
        return
    if not (hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")):
        for program in missing:
            if program in REASONS:
                sys.exit(f"{REASONS[program]}; on Debian or Ubuntu: apt-get install {PACKAGES[program]}")
        return
    print(f"installing {', '.join(missing)} for the tests", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    packages = [PACKAGES[program] for program in missing]
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", *packages]):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


main()
