"""Objects that bodies display, as values: `Displayed`, and their files in the run's folder.

    displays/0001-1764507000123-2.json     rank 1, the time (ms since 1970), its second object
    {"output_type": "display_data", "data": {"image/png": "iVBORw0...", "text/plain": "<Figure ...>"},
     "metadata": {}, "transient": {"display_id": ""}}

A file has the form of an output in a notebook file, with the display's own name. An object that is updated
has its newest state: its file is replaced as a whole. Readers take nothing on trust: a run's folder may come
from another machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.json_values import mapping, object_in, text
from nbdist.metrics.run_folder import write_whole_file

DISPLAYS_FOLDER = "displays"
DISPLAY_TYPES = ("text/html", "text/markdown", "text/latex", "image/png", "image/jpeg", "image/svg+xml")
"""The media types that are sent and kept of an object that a body displays, beside its text/plain."""
DISPLAY_LIMIT = 4 << 20  # bytes of one object
MOST_DISPLAYS = 100  # of a task in one run; updates of an object are not counted
MOST_FILES = 10_000  # that are read of a run
LONGEST_TEXT, LONGEST_NAME = 2_000, 200  # characters of text/plain, and of a display's name
KEY = re.compile(r"(\d{1,9})-\d{1,16}-\d{1,9}")
TEXT = "text/plain"


class Displayed(NamedTuple):
    """An object that a body displayed: its form in each media type, images in base64.

    - ``name`` is the display's own (``display_id``), empty if it has none; with ``update`` it replaces the
      one of that name
    - ``key`` identifies it in its run, and is the name of its file; a display of a known key is its new state
    """

    data: dict[str, str]
    name: str = ""
    update: bool = False
    key: str = ""

    @property
    def rank(self) -> int:
        """The rank of the task that displayed it."""
        return rank_of(self.key)

    @property
    def size(self) -> int:
        """Characters of all its forms."""
        return sum(map(len, self.data.values()))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return dict(self.data)

    def message(self) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Return it as the fields and the parts of a message.

        >>> meta, parts = Displayed({"text/html": "<b>1</b>"}, "bar", key="0-1-1").message()
        >>> Displayed.received(meta, parts).data
        {'text/html': '<b>1</b>'}
        """
        parts = [np.frombuffer(one.encode("utf-8", "replace"), np.uint8) for one in self.data.values()]
        return {"key": self.key, "name": self.name, "types": list(self.data)}, tuple(parts)

    @classmethod
    def received(cls, meta: Mapping[str, Any], parts: Sequence[Any]) -> Displayed:
        """Return the object of a message; raises InvalidArgumentError for one that no task makes."""
        types, key = meta.get("types"), meta.get("key")
        if not isinstance(types, list) or len(types) != len(parts):
            raise InvalidArgumentError(f"an object has {len(parts)} parts for the media types {types!r:.80}")
        texts = [one.tobytes().decode("utf-8", "replace") for one in parts]
        return checked(dict(zip(map(str, types), texts, strict=True)), key, meta.get("name"))


def checked(data: Mapping[str, Any], key: object, name: object) -> Displayed:
    """Return an object with the known media types of its data; raises InvalidArgumentError without any."""
    known = {kind: data[kind] for kind in (*DISPLAY_TYPES, TEXT) if isinstance(data.get(kind), str)}
    if not isinstance(key, str) or KEY.fullmatch(key) is None:
        raise InvalidArgumentError(f"an object has the key {key!r:.80}; expected RANK-TIME-NUMBER")
    if not known.keys() - {TEXT} or sum(map(len, known.values())) > DISPLAY_LIMIT + LONGEST_TEXT:
        raise InvalidArgumentError(f"object {key} has no media type that is shown, or too many bytes")
    return Displayed(known, text(name, LONGEST_NAME), key=key)


def keep(run_folder: Path, shown: Displayed) -> None:
    """Write an object into a run's folder; raises OSError, also if ``displays`` there is a link."""
    folder = run_folder / DISPLAYS_FOLDER
    if folder.is_symlink():
        raise NotADirectoryError(20, "it is a link", str(folder))
    folder.mkdir(mode=0o700, exist_ok=True)
    content = {"output_type": "display_data", "data": shown.data, "metadata": {}}
    content["transient"] = {"display_id": shown.name}
    encoded = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    write_whole_file(folder / f"{shown.key}.json", encoded, wait=False)


def keys_in(run_folder: Path) -> list[str]:
    """Return the keys of the objects in a run's folder by time."""
    folder = run_folder / DISPLAYS_FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    return in_order(path.stem for path in folder.glob("*.json"))[:MOST_FILES]


def in_order(names: Iterable[str]) -> list[str]:
    """Return those of some names that are keys of objects, by time.

    >>> in_order(["1-7-2", "0-10-1", "run", "0-7-1"])
    ['0-7-1', '1-7-2', '0-10-1']
    """
    keys = [name for name in names if KEY.fullmatch(name)]
    parts = {key: tuple(map(int, key.split("-"))) for key in keys}
    return sorted(keys, key=lambda key: (parts[key][1], parts[key]))


def rank_of(key: str) -> int:
    """Return the rank of the task that displayed an object."""
    return int(key.partition("-")[0])


def read(run_folder: Path, key: str) -> Displayed | None:
    """Return an object from a run's folder; None if it is not there, or its file is not one of nbdist."""
    path = run_folder / DISPLAYS_FOLDER / f"{key}.json"
    with suppress(OSError, NbdistError, ValueError):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 2 * DISPLAY_LIMIT:
            return None
        found = object_in(path.read_bytes())
        return checked(mapping(found.get("data")), key, mapping(found.get("transient")).get("display_id"))
    return None


def stored(run_folder: Path) -> list[Displayed]:
    """Return the objects that the bodies of a run have displayed so far."""
    return [found for key in keys_in(run_folder) if (found := read(run_folder, key)) is not None]
