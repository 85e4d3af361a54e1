"""In-graph runs: the body runs in one thread of the client, and the tasks compute."""
