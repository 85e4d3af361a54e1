"""The notebook's environment on other hosts: what it has, how it is sent, and how a host makes it."""
