"""From a placed graph to programs: partition, schedule, memory plan, and each subgraph's calls."""
