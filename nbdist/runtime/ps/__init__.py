"""The parameter-server data plane: shards on ps tasks, and the clients that pull and push."""
