"""What mpiexec starts, once for each rank of a world: it hands its seat to the keeper and waits for its end.

Run as a script in the cluster's folder, by the standard library alone. The seat is the connection to
mpiexec (PMI_FD) by which MPI finds the other ranks, with what the environment says of it.
"""

import json
import os
import signal
import socket

DOOR = "world.sock"


def main() -> None:
    """Hand the seat over; the keeper's end of the connection ends this process."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which mpiexec tells that another seat's process ended
    said = {name: value for name, value in os.environ.items() if name.startswith(("PMI_", "MPI_LOCAL"))}
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.connect(DOOR)
        descriptors = [int(said["PMI_FD"])] if "PMI_FD" in said else []
        socket.send_fds(keeper, [json.dumps(said).encode() + b"\n"], descriptors)
        keeper.recv(1)


if __name__ == "__main__":
    main()
