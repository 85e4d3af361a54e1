"""The line of %%sweep: parameters as in ``lr=log(1e-4, 1e-1)``, and flags. Pure."""

from __future__ import annotations

import ast
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.runs.options import COLLECTIVE_KINDS
from nbdist.sweep.parse import words
from nbdist.sweep.pruners import PRUNERS
from nbdist.sweep.samplers import SAMPLERS
from nbdist.trials.start import STRATEGIES
from nbdist.ui.flags import Flag, grouped, names, parse_words

MAGIC = "%%sweep"


def with_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Read a name with settings.

    >>> with_settings("asha(eta=3, first=2)"), with_settings("none")
    (('asha', {'eta': 3, 'first': 2}), ('none', {}))
    """
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Name) or text.replace("-", "_").isidentifier():
            return text, {}
        if isinstance(node, ast.Call) and not node.args:
            settings = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords if one.arg}
            return ast.unparse(node.func).replace(" - ", "-"), settings
    except (SyntaxError, ValueError):
        pass
    raise InvalidArgumentError("write a name, or a name with settings such as asha(eta=3)")


SWEEP_FLAGS = grouped({
    "What counts": {
        "--metric": Flag("metric", str, "NAME", "the metric that trials are compared by (needed)"),
        "--max": Flag("direction", help="more of it is better (default)", value="max"),
        "--min": Flag("direction", help="less of it is better, as of a loss", value="min"),
    },
    "Which trials": {
        "--trials": Flag("trials", int, "N", "how many (a grid: all its points)"),
        "--sampler": Flag(
            "sampler", with_settings, "|".join(SAMPLERS), "chooses the parameters (default random, or grid)"
        ),
        "--pruner": Flag("pruner", with_settings, "|".join(PRUNERS), "the early-stopping rule for trials"),
        "--seed": Flag("seed", int, "N", "fixes what is asked for, and each trial's own seed"),
        "--space": Flag("space", str, "NAME", "a Space, dict or SpaceEditor of this notebook"),
    },
    "Where": {
        "--per-trial": Flag("per_trial", int, "K", "engines that train a trial together (default 1)"),
        "--strategy": Flag("strategy", str, "|".join(STRATEGIES), "how these do (default multi_worker)"),
        "--collective": Flag("collective", str, "|".join(COLLECTIVE_KINDS), "how gradients are summed there"),
        "--on": Flag("on", str, "worker:0-2", "which engines (default: all workers)"),
    },
    "The sweep": {
        "--push": Flag("push", names, "x,make_model", "values and functions of this notebook, for trials"),
        "--name": Flag("name", str, "NAME", "a name for it"),
        "--wait": Flag("wait", help="the cell runs until the sweep has ended; an interrupt stops the sweep"),
        "--no-live": Flag("live", help="show no grid", value=False),
    },
})  # fmt: skip


def read_line(line: str) -> tuple[str, dict[str, Any]]:
    """Return the text of the space, and the options, in a magic's line.

    >>> read_line("lr=log(1e-4, 1e-1) --trials 8 --metric loss --min")
    ('lr=log(1e-4, 1e-1)', {'trials': 8, 'metric': 'loss', 'direction': 'min'})
    """
    given = [unquoted(word) for word in words(line)]
    plain, options = parse_words(given, SWEEP_FLAGS, MAGIC)
    for name in ("sampler", "pruner"):
        if name in options:
            options[name], settings = options[name]
            options[f"{name}_settings"] = settings
    return " ".join(plain), options


def unquoted(word: str) -> str:
    """Return a word without the quotes around it.

    >>> unquoted("'my sweep'"), unquoted("loss")
    ('my sweep', 'loss')
    """
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
