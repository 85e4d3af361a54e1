"""The command of the launcher "kubernetes": it starts a host supervisor in each pod of an Indexed Job.

    python -m nbdist.cluster.launchers.kubernetes --image=ghcr.io/me/train:1 --pods=2 --pod-gpus=4 < plan

The plan is the first line of standard input. It has keys: they reach the pods in a Secret, which is mounted
into them as the standard input of their supervisors, and is deleted when the last of them has started. JSON
lines on standard output are the progress:

    {"job": "nbdist-1f", "waiting": "pods nbdist-1f-0 and nbdist-1f-1 are pending: it is being scheduled"}
    {"job": "nbdist-1f", "hosts": ["nbdist-1f-0", "nbdist-1f-1"], "seconds_left": 7199.0}
    {"job": "nbdist-1f", "lost": ["nbdist-1f-1"], "reasons": ["pod nbdist-1f-1 was removed: ..."]}

The command lives as long as the pods. SIGTERM, SIGINT and SIGHUP delete all that it has made. If it ends
early, its standard error is one sentence that says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from nbdist.cluster.launchers.command import check_settings, command_line, run_command
from nbdist.cluster.launchers.kubernetes import manifests
from nbdist.cluster.launchers.kubernetes.request import SETTINGS, PodRequest
from nbdist.cluster.launchers.kubernetes.row import require_kubernetes
from nbdist.errors import NbdistError


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = command_line("kubernetes", SETTINGS)
    parser.add_argument("--print-manifests", action="store_true", help="print what would be created, as YAML")
    parser.add_argument("--print-role", action="store_true", help="print the Role that the notebook needs")
    given = vars(parser.parse_args(arguments))
    print_manifests, print_role = given.pop("print_manifests"), given.pop("print_role")
    if print_role or print_manifests:
        try:
            require_kubernetes()
            check_settings(SETTINGS, given)
            print_yaml([manifests.role()] if print_role else all_manifests(PodRequest(**given)))
        except NbdistError as error:
            print(error, file=sys.stderr)
            return 1
        return 0

    def start(plan: bytes) -> Callable[[], None]:
        require_kubernetes()
        from nbdist.cluster.launchers.kubernetes.api import Api
        from nbdist.cluster.launchers.kubernetes.launcher import KubernetesLauncher

        request = PodRequest(**given)
        return KubernetesLauncher(request, plan, Api(request.context, request.namespace)).run

    return run_command(SETTINGS, given, start)


def all_manifests(request: PodRequest) -> list[manifests.Manifest]:
    """Return the objects of a cluster, with stand-ins for what is known when they are created."""
    template = manifests.read_template(request.pod_template) if request.pod_template else {}
    job = manifests.job("nbdist-example", request, template, cluster="example")
    manifests.check_image(job["spec"]["template"])
    owner = manifests.owner_of({**job, "metadata": {**job["metadata"], "uid": "the-uid-of-the-job"}})
    line = b"the plan, a line of JSON\n"
    name = job["metadata"]["name"]
    return [job, manifests.service(name, owner), manifests.secret(name, owner, line)]


def print_yaml(objects: Sequence[manifests.Manifest]) -> None:
    """Print objects as kubectl takes them."""
    import yaml

    print(yaml.safe_dump_all(objects, sort_keys=False), end="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
