"""Sessions: any part of a placed graph is run, by executors on the tasks that hold its devices."""
