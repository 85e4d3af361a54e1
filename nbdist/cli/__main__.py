"""nbdist on the command line: ``nbdist VERB [FLAGS]``, or ``python -m nbdist.cli VERB [FLAGS]``.

To add a verb, write its file, with a `Verb`, and add its row to `VERBS`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nbdist.cli import clean, doctor
from nbdist.cli.verb import Verb
from nbdist.errors import NbdistError
from nbdist.home import own_version
from nbdist.ui.flags import parse_words, unknown, usage

VERBS: dict[str, Verb] = {verb.name: verb for verb in (clean.VERB, doctor.VERB)}
HELP = ("--help", "-h", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit status: 0, 1 if the verb found a problem, 2 for a mistake on the line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(own_version())
        return 0
    if not words or words[0] in HELP:
        print(help_text())
        return 0 if words else 2
    try:
        if (verb := VERBS.get(words[0])) is None:
            print(unknown("nbdist: no verb", words[0], VERBS), file=sys.stderr)
            return 2
        if any(word in HELP for word in words[1:]):
            print(f"nbdist {verb.name}: {verb.help}\n\n{usage(verb.flags)}")
            return 0
        plain, options = parse_words(words[1:], verb.flags, f"nbdist {verb.name}")
        if plain:
            flags = ", ".join(verb.flags)
            print(f"nbdist {verb.name}: unexpected word {plain[0]!r}; the flags are {flags}", file=sys.stderr)
            return 2
        return verb.run(**options)
    except NbdistError as error:
        print(error, file=sys.stderr)
        return 2


def help_text() -> str:
    """Return the list of verbs.

    >>> help_text().splitlines()[0]
    'nbdist VERB [FLAGS]; nbdist VERB --help lists the flags'
    """
    verbs = [f"    {verb.name:<10} {verb.help}" for verb in VERBS.values()]
    return "\n".join(["nbdist VERB [FLAGS]; nbdist VERB --help lists the flags", "", *verbs])


if __name__ == "__main__":
    sys.exit(main())
