"""``--notify``: a command or an address of the user's that is told when a run ends or loses a task.

    notifier = Notifier(target_of("notify-send nbdist"), problem=notes.append)
    notifier.tell(Notice("finished", "run", run.id, run.name, "run mnist has finished after 3 min 10 s"))
    notifier.close(then)        # `then` is called when all is delivered, or has failed

The client that started the run tells, from a thread; tasks have no part in it. What goes wrong is a note of
the run and changes nothing else.

- A command is words, as a shell splits them, and no shell runs it: no text of a run can become a part of it.
  It finds the notice as JSON on its stdin, and its parts in the environment (`NBDIST_EVENT`, ...).
- An address receives the notice as JSON by POST: https, or http on this host. A redirection is an error.
"""

from __future__ import annotations

import ipaddress
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from http.client import HTTPException
from typing import IO, Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from nbdist.errors import InvalidArgumentError
from nbdist.home import own_version
from nbdist.json_values import number
from nbdist.metrics.run_folder import duration
from nbdist.text import clip, measured

COMMAND_SECONDS = 30.0  # for a command, which is killed then
POST_SECONDS = 10.0  # for an address, until it answers
LONGEST_TARGET = 2048  # characters
LONGEST_TEXT = 2_000  # characters of a text in a notice
MOST_WAITING = 64  # notices; later ones are dropped
NoticeEvent = Literal["finished", "stopped", "failed", "lost"]


@dataclass(frozen=True)
class Notice:
    """What is told.

    - ``event``: "finished", "stopped" or "failed" at the end, "lost" for a task that was lost on the way
    - ``kind``: "run" or "sweep"; ``id`` and ``name`` are its own
    - ``text``: one sentence for people
    - ``folder``: where its files are
    - ``step``, ``seconds``, ``metrics``: how far it is; None and {} where nothing is known
    - ``error``: one line, "" without one
    - ``tasks``: the tasks that were lost
    """

    event: NoticeEvent
    kind: str
    id: str
    name: str
    text: str
    folder: str = ""
    step: int | None = None
    seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    tasks: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Return it as JSON. A number that is not finite is null.

        >>> notice = Notice("failed", "run", "r1", "mnist", "it failed", metrics={"loss": float("nan")})
        >>> json.loads(notice.to_json())["metrics"]
        {'loss': None}
        """
        found = asdict(self) | {
            name: clip(getattr(self, name), LONGEST_TEXT) for name in ("name", "text", "error")
        }
        found["seconds"] = number(self.seconds)
        found["metrics"] = {name: number(value) for name, value in self.metrics.items()}
        return json.dumps(found).encode()

    def environment(self) -> dict[str, str]:
        """Return its parts for the environment of a command.

        >>> Notice("lost", "run", "r1", "mnist", "it", tasks=("worker 1",)).environment()["NBDIST_TASKS"]
        'worker 1'
        """
        parts = {**vars(self), "tasks": ", ".join(self.tasks)}
        del parts["metrics"]
        texts = {name: "" if value is None else str(value) for name, value in parts.items()}
        return {f"NBDIST_{name.upper()}": clip(value, LONGEST_TEXT) for name, value in texts.items()}


def ended_text(
    kind: str,
    name: str,
    status: str,
    seconds: float | None,
    step: int | None,
    metrics: Mapping[str, float],
    error: str,
) -> str:
    """Return the sentence about the end of a run or a sweep.

    >>> ended_text("run", "mnist", "finished", 190.0, 1200, {"loss": 0.125}, "")
    'run mnist has finished after 3 min 10 s, at step 1,200: loss 0.1250'
    >>> ended_text("run", "mnist", "stopped", None, None, {}, "")
    'run mnist was stopped'
    """
    text = f"{kind} {name} {'was' if status == 'stopped' else 'has'} {status}"
    text += "" if seconds is None else f" after {duration(seconds)}"
    text += "" if not step else f", at step {step:,}"
    said = error or ", ".join(f"{name} {measured(value)}" for name, value in metrics.items())
    return f"{text}: {said}" if said else text


@dataclass(frozen=True)
class Target:
    """Where a notice goes: the ``words`` of a command, or a ``url``."""

    words: tuple[str, ...] = ()
    url: str = ""

    def __str__(self) -> str:
        """Its name in a message: an address may have a secret in its path, so only its host is named."""
        return f"{urlsplit(self.url).scheme}://{urlsplit(self.url).netloc}/..." if self.url else self.words[0]


def target_of(text: str) -> Target:
    """Return the target that the value of ``--notify`` means.

    Raises InvalidArgumentError for a program that is not there, and for an address that is neither https nor
    on this host.

    >>> target_of("https://hooks.example.com/T0/secret")
    Target(words=(), url='https://hooks.example.com/T0/secret')
    >>> target_of("http://example.com/a")
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: --notify http://example.com/...: http is for this host; use https
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_TARGET or "\0" in text:
        raise InvalidArgumentError(
            f"--notify takes a command or an address, of at most {LONGEST_TARGET:,} characters, "
            f"got {text!r:.80}"
        )
    scheme, colon, _ = text.strip().partition("://")
    if colon and " " not in scheme:
        return Target(url=_checked_url(text.strip()))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"--notify takes words as a shell reads them, got {text!r:.80}: {error}"
        ) from None
    if not words:
        raise InvalidArgumentError("--notify takes a command or an address, got a comment")
    program = os.path.expanduser(words[0])
    if shutil.which(program) is None:
        raise InvalidArgumentError(
            f"--notify {text!r:.80}: there is no program {program!r} to run. It takes a command, such as "
            "'notify-send nbdist', or an address, such as https://HOST/PATH"
        )
    return Target((program, *words[1:]))


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgumentError(f"--notify takes an address such as https://HOST/PATH: {error}") from None
    named = f"--notify {parts.scheme}://{host or ''}/..."
    if parts.scheme not in ("http", "https"):
        raise InvalidArgumentError(f"{named}: {parts.scheme} is not supported; use https")
    if not host or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise InvalidArgumentError(f"{named}: an address is https://HOST/PATH, without spaces")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgumentError(f"{named}: leave the user and the password out of the address")
    if parts.scheme == "http" and not is_loopback(host):
        raise InvalidArgumentError(f"{named}: http is for this host; use https")
    return url


def is_loopback(host: str) -> bool:
    """Return whether a name means this host.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost.a.com")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class Notifier:
    """Delivers notices one after the other, from a thread of its own; any thread may call it.

    - ``target``: where they go
    - ``problem``: receives a sentence for each that could not be delivered, on that thread

    The thread ends at `close`. A process that ends waits for it, at most as long as a delivery may take.
    """

    def __init__(self, target: Target, problem: Callable[[str], object]) -> None:
        self._target, self._problem = target, problem
        self._waiting: queue.Queue[Notice | None] = queue.Queue()
        self._then: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def tell(self, notice: Notice) -> None:
        """Have a notice delivered. Losses that wait for their delivery together are one notice."""
        if self._waiting.qsize() >= MOST_WAITING:
            self._problem(
                f"--notify {self._target} was not told that {notice.text}: {MOST_WAITING} others wait"
            )
            return
        self._waiting.put(notice)
        try:
            self._begin()
        except RuntimeError as error:  # this process ends
            self._problem(f"--notify {self._target} was not told that {notice.text}: {error}")

    def close(self, then: Callable[[], object]) -> None:
        """Deliver what waits, then call ``then``, on the thread; at once if nothing was told."""
        self._then = then
        if self._thread is None:
            then()
            return
        self._waiting.put(None)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._deliver_all, name="nbdist notifies")
                thread.start()
                self._thread = thread

    def _deliver_all(self) -> None:
        while notices := self._taken():
            for notice in merged([one for one in notices if one is not None]):
                try:
                    deliver(self._target, notice)
                except Exception as error:  # of any library: the run is not to fail
                    self._problem(f"--notify {self._target} was not told that {notice.text}: {why(error)}")
            if notices[-1] is None:
                break
        self._then()

    def _taken(self) -> list[Notice | None]:
        """Return what waits, at least one."""
        found = [self._waiting.get()]
        with suppress(queue.Empty):
            while found[-1] is not None:
                found.append(self._waiting.get_nowait())
        return found


def tell(target: Target, notice: Notice, problem: Callable[[str], object]) -> None:
    """Deliver one notice, from a thread."""
    notifier = Notifier(target, problem)
    notifier.tell(notice)
    notifier.close(lambda: None)


def merged(notices: list[Notice]) -> list[Notice]:
    """Return notices with those about losses that follow each other as one.

    >>> one = Notice("lost", "run", "r1", "mnist", "worker 1 was killed", tasks=("worker 1",))
    >>> [both] = merged([one, replace(one, text="worker 2 was killed", tasks=("worker 2",))])
    >>> both.text, both.tasks
    ('worker 1 was killed; worker 2 was killed', ('worker 1', 'worker 2'))
    """
    found: list[Notice] = []
    for one in notices:
        if found and (found[-1].event, found[-1].id, one.event) == ("lost", one.id, "lost"):
            last = found.pop()
            one = replace(one, text=f"{last.text}; {one.text}", tasks=(*last.tasks, *one.tasks))
        found.append(one)
    return found


def deliver(target: Target, notice: Notice) -> None:
    """Run the command, or send the request; raises what goes wrong."""
    if target.url:
        post(target.url, notice.to_json())
    else:
        run_command(target.words, notice)


def run_command(words: tuple[str, ...], notice: Notice) -> None:
    """Run a command to its end; raises OSError, TimeoutExpired and CalledProcessError with its last words."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, **notice.environment()},
            start_new_session=True,  # an interrupt of the run is none of its business
        )
        try:
            process.communicate(notice.to_json(), COMMAND_SECONDS)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words[0], stderr=_last_words(said))


def _last_words(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 300))
    return " ".join(file.read().decode("utf-8", "replace").split())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection as the error that it is: it could lead from https to anywhere."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        """Follow none."""


def post(url: str, content: bytes) -> None:
    """Send JSON to an address; raises OSError and HTTPException."""
    headers = {"Content-Type": "application/json", "User-Agent": f"nbdist/{own_version()}"}
    request = urllib.request.Request(url, content, headers, method="POST")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_loopback(urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    with urllib.request.build_opener(*handlers).open(request, timeout=POST_SECONDS) as answer:
        answer.read(1)


def why(error: BaseException) -> str:
    """Return why a notice was not delivered, without the address.

    >>> why(HTTPError("https://a/secret", 404, "Not Found", None, None))
    'HTTP 404 Not Found'
    """
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {clip(error.reason)}"
    if isinstance(error, URLError):
        return clip(error.reason)
    if isinstance(error, subprocess.CalledProcessError):
        said = f": {clip(error.stderr, 200)}" if error.stderr else ""
        return f"it ended with exit status {error.returncode}{said}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it has not ended within {COMMAND_SECONDS:g} s, and was killed"
    if isinstance(error, TimeoutError):
        return f"no answer within {POST_SECONDS:g} s"
    if isinstance(error, OSError | HTTPException):
        return clip(error)
    return f"{type(error).__name__}: {clip(error)}"
