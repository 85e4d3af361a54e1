"""One-way messages between tasks and clients: a pipe, a socket, and slots in shared memory."""
