"""The process that preloads the libraries, forks a cluster's tasks, watches them and ends them."""
