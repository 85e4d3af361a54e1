"""Checkpoints and states on a full disk: a real file system of 64 kB in its own mount namespace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import json, sys
from pathlib import Path
import numpy as np
from nbdist import nn
from nbdist.data import Dataset
from nbdist.train import Callback
from nbdist.train import context as contexts
from nbdist.train.context import Checkpoints

folder = Path(sys.argv[1])
folder.chmod(0o700)
context = contexts.Context(seed=1, quiet=True, checkpoints=Checkpoints(folder / "checkpoints"))
found = []

class Ask(Callback):
    def on_epoch_end(self, epoch, logs):
        found.append(context.progress.checkpoint)
        context.control.ask_checkpoint(epoch + 1)

x, y = np.ones((8, width := int(sys.argv[2])), np.float32), np.arange(8) % 2
with contexts.use(context):
    for units in (2, 40):
        model = nn.Sequential([nn.Dense(units, "tanh"), nn.Dense(2, "softmax")])
        model.compile("sgd")
        model.fit(Dataset.from_arrays(x, y).batch(4), epochs=3, callbacks=[Ask()])
        found.append(context.progress.checkpoint)
paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
kept = [one["path"] for one in found if one and one["path"]]
shapes = [[list(w.shape) for w in nn.load(path).get_weights()] for path in sorted(set(kept))]
steps = context.progress.step
print(json.dumps({"found": found, "paths": paths, "shapes": shapes, "steps": steps}))
"""

LEAVE = """
import json, sys
from pathlib import Path
import numpy as np
from nbdist import nn
from nbdist.train import context as contexts
from nbdist.train.resume import TrainingStates, read_saved

folder = Path(sys.argv[1])
states = TrainingStates(write=folder / "state.safetensors")
x, y = np.ones((8, int(sys.argv[2])), np.float32), np.arange(8) % 2
errors = []
with contexts.use(contexts.Context(seed=1, quiet=True, states=states)):
    for units in (2, 40, 40):
        model = nn.Sequential([nn.Dense(units, "tanh"), nn.Dense(2, "softmax")])
        model.compile("adam")
        model.fit(x, y, epochs=3)
        errors.append(states.error)
paths = [path.name for path in folder.iterdir()]
print(json.dumps({"errors": errors, "paths": paths, "training": read_saved(states.target).state.training}))
"""


WHILE = """
import json, sys
from pathlib import Path
import numpy as np
from nbdist import nn
from nbdist.train import context as contexts
from nbdist.train.resume import TrainingStates, read_saved
from nbdist.checkpoint.manager import parse_interval, state_files

class Patient(TrainingStates):
    def is_due(self, step):
        self._wait()
        return super().is_due(step)

folder = Path(sys.argv[1])
states = Patient(folder, parse_interval(1))
x, y = np.ones((8, int(sys.argv[2])), np.float32), np.arange(8) % 2
with contexts.use(contexts.Context(seed=1, quiet=True, states=states)) as context:
    for units in (2, 40):
        model = nn.Sequential([nn.Dense(units, "tanh"), nn.Dense(2, "softmax")])
        model.compile("adam")
        model.fit(x, y, batch_size=4, epochs=3)
paths = sorted(path.name for path in folder.iterdir())
found = [[read_saved(path).state.training, read_saved(path).state.step] for path in state_files(folder)]
print(json.dumps({"error": states.error, "paths": paths, "found": found, "steps": context.progress.step}))
"""


@pytest.fixture
def small(tmp_path: Path) -> tuple[list[str], Path]:
    """Return the command prefix that mounts a disk of 64 kB on a folder, and the folder."""
    begin = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*begin, "true"], check=False).returncode:
        pytest.skip("this user may not mount a file system in a namespace of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = f'mount -t tmpfs -o size=64k tmpfs {disk} && exec "$@"'
    return [*begin, "sh", "-c", mounting, "sh"], disk


@pytest.mark.slow
def test_training_continues_and_the_old_checkpoint_is_valid(small: tuple[list[str], Path]) -> None:
    begin, disk = small
    command = [*begin, sys.executable, "-c", TRAIN, str(disk), "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    last = result["found"][-1]
    assert (last["number"], last["path"], result["steps"]) == (3, None, 12)
    assert "the checkpoint of step 12 could not be written" in last["error"]
    assert "No space left on device" in last["error"]
    assert result["shapes"]
    assert all(shape == [[500, 2], [2], [2, 2], [2]] for shape in result["shapes"])
    assert not [path for path in result["paths"] if "draft" in path or "partial" in path]


@pytest.mark.slow
def test_a_training_finishes_and_the_old_state_is_valid(small: tuple[list[str], Path]) -> None:
    begin, disk = small
    command = [*begin, sys.executable, "-c", LEAVE, str(disk), "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    first, *others = result["errors"]
    assert first is None
    assert all("No space left on device" in error for error in others)
    assert done.stdout.count("No space left") == 1 + len(others), "printed once, and in each error"
    assert (result["paths"], result["training"]) == (["state.safetensors"], 1)


@pytest.mark.slow
def test_states_that_do_not_fit_leave_the_older_ones_and_nothing_else(small: tuple[list[str], Path]) -> None:
    begin, disk = small
    command = [*begin, sys.executable, "-c", WHILE, str(disk), "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == 12
    assert "No space left on device" in result["error"]
    assert done.stdout.count("No space left") == 2, "printed once, and in the error"
    assert result["found"] == [[1, 6], [1, 5]]
    assert result["paths"] == ["state-0001-000000000005.safetensors", "state-0001-000000000006.safetensors"]
