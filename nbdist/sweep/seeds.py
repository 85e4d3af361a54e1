"""Numbers that depend on a sweep's seed and a trial's number, and on nothing else. Pure."""

from __future__ import annotations

from hashlib import blake2b


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial, 0 to 2**32 - 1; two trials of a sweep never share one.

    >>> trial_seed(7, 0), trial_seed(7, 1)
    (49450524, 486743173)
    """
    # The sweep's seed says where to start; the mixer (MurmurHash3's last step) maps no two numbers to one.
    mixed = (int.from_bytes(blake2b(str(seed).encode(), digest_size=4).digest()) + number) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    return mixed ^ mixed >> 16


def fraction(seed: int, number: int, name: str) -> float:
    """Return a random number, 0 up to (not including) 1, for one parameter of one trial.

    Each parameter has its own, so that an edit of one leaves the others' draws as they were.

    >>> round(fraction(7, 0, "lr"), 6)
    0.783341
    """
    digest = blake2b(f"{seed}/{number}/{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53
