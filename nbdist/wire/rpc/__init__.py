"""Calls from task to task: frames, envelopes, the calling and the called side."""
