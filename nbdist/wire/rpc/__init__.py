"""Calls from task to task: frames, envelopes, the calling side (Peer) and the called side (Listener)."""
