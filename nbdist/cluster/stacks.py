"""Where tasks are at this moment: `Stacks`, the stacks of their threads, grouped by place. Pure.

    print(cluster.stacks())
    worker:1 is at line 7 of the body: time.sleep(1000)
    worker:0 and worker:2 are at line 9 of the body: nb.collective.all_reduce(x) (calls all_reduce, ...)

How they are read from a task that hangs: `nbdist.cluster.supervisor.stacks`.
"""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from nbdist.cluster.code_origin import BODY, LIBRARY, MODULE, NOTEBOOK, USERS, origin, run_of, short_path
from nbdist.errors import NbdistError
from nbdist.json_values import listed, mapping, text, whole
from nbdist.metrics.run_folder import read_run
from nbdist.runtime.task import TaskInfo
from nbdist.text import clip

MOST_NAMED, MOST_THREADS = 4, 2  # tasks, and places of other threads, in a sentence
WRAPPERS = ("nbdist/keras_arguments.py",)  # between a user's call and what is called
MOST_FRAMES = 80  # of a thread
LONGEST_CODE = 100  # characters of a line
LONGEST_FILE = 500
NO_FILE = "?"
Code = Callable[["Frame"], str]
"""Returns the line of code of a frame; "" if it is not known here."""


@dataclass(frozen=True)
class Frame:
    """A call that a thread is in.

    - ``file``, ``line``, ``function``: where it is; the line is 0 if it is not known
    - ``origin``: whose code it is, as `nbdist.cluster.code_origin.origin` says on the task's host
    - ``is_here``: whether the task is on this host, whose files are the task's
    """

    file: str
    line: int
    function: str
    origin: str = LIBRARY
    is_here: bool = False

    @property
    def is_users(self) -> bool:
        """Whether it is a line of the user's own."""
        return self.origin in USERS

    @property
    def name(self) -> str:
        """The function, without those in which it is defined."""
        return self.function.rpartition("<locals>.")[2]

    @property
    def place(self) -> str:
        """The place in words, such as "line 7 of the body".

        >>> Frame("<distribute 2611>", 7, "<module>", "body").place
        'line 7 of the body'
        >>> Frame("/home/me/net.py", 3, "step", "module").place
        'line 3 of net.py, in step'
        """
        where = {BODY: "the body", NOTEBOOK: "a cell"}.get(self.origin, PurePath(self.file).name)
        inside = "" if self.function == "<module>" else f", in {self.name}"
        return f"line {self.line} of {where}{inside}"

    def row(self, code: str = "") -> str:
        """Return the frame as a line of a stack; a ``>`` marks a line of the user's."""
        where = {BODY: "body", NOTEBOOK: "cell"}.get(self.origin, short_path(self.file))
        line = f"{'>' if self.is_users else ' '} {where}, line {self.line}, in {self.name}"
        return f"{line:<44}  {code}" if code and self.is_users else line


@dataclass(frozen=True)
class Thread:
    """A thread: its name, "" if it is not known, and the calls that it is in, the innermost last."""

    name: str
    is_main: bool
    frames: tuple[Frame, ...]

    @property
    def users(self) -> tuple[Frame, ...]:
        """The frames of the user's own code."""
        return tuple(frame for frame in self.frames if frame.is_users)

    @property
    def called(self) -> Frame | None:
        """What the innermost line of the user's has called; None if it calls no Python."""
        last = max((i for i, frame in enumerate(self.frames) if frame.is_users), default=len(self.frames))
        inner = self.frames[last + 1 :]
        return next((frame for frame in inner if short_path(frame.file) not in WRAPPERS), None)

    @property
    def key(self) -> object:
        """Equal for threads at the same place of the user's code."""
        at = tuple((frame.file, frame.line, frame.function) for frame in self.users)
        return at, self.called and (self.called.file, self.called.function)

    def place(self, code: Code) -> str:
        """Return where it is in the user's code, which it has to be in; such as "at line 7 of the body"."""
        line, called = code(self.users[-1]), self.called
        inside = "" if called is None else f" (calls {called.name}, {short_path(called.file)})"
        return f"at {self.users[-1].place}{f': {line}' if line else ''}{inside}"

    def rows(self, code: Code, full: bool) -> list[str]:
        """Return its frames as lines; unless ``full``, without those around the user's outermost one."""
        first = next((i for i, frame in enumerate(self.frames) if frame.is_users), 0)
        return [frame.row(code(frame)) for frame in self.frames[0 if full else first :]]


@dataclass(frozen=True)
class TaskStack:
    """The threads of a task at one moment.

    - ``task``: its short name; ``pid``: its process
    - ``state``: psutil's word, such as "running", "sleeping" or "stopped"
    - ``by``: "py-spy" or "faulthandler", which has read them; "" if they could not be read
    - ``threads``: the main thread first
    - ``problem``: why there is no stack, as a sentence without an end; else ""
    """

    task: str
    pid: int
    state: str = ""
    by: str = ""
    threads: tuple[Thread, ...] = ()
    problem: str = ""
    left_out: int = 0
    """Threads that did not fit the answer."""

    @classmethod
    def of(
        cls, task: str, pid: int, answer: object, why: str = "it has ended", is_here: bool = False
    ) -> TaskStack:
        """Return what a supervisor says of a task; ``why`` is the problem if it says nothing."""
        found = mapping(answer)
        if not found:
            return cls(task, pid, problem=why)
        state, by = text(found.get("state"), 40) or "", text(found.get("by"), 40) or ""
        told = mapping(found.get("threads"))
        threads = tuple(_thread(one, is_here) for one in listed(told.get("threads")))
        left = whole(told.get("left_out")) or 0
        own = whole(found.get("pid")) or pid
        problem = "" if threads else problem_of(state, own)
        return cls(task, own, state, by, threads, problem, left)

    @property
    def main(self) -> Thread:
        """The main thread, on which bodies run."""
        return next((one for one in self.threads if one.is_main), Thread("", True, ()))

    @property
    def is_stopped(self) -> bool:
        """Whether its process is stopped, as by SIGSTOP."""
        return self.state == "stopped"

    @property
    def others(self) -> list[Thread]:
        """The other threads in code of the user's, as those that make batches."""
        return [one for one in self.threads if one.users and not one.is_main]

    @property
    def key(self) -> object:
        """Equal for tasks that are at the same place of the user's code, with the threads that are in it."""
        problem = re.sub(r"\d+", "", self.problem)  # the pid
        return self.is_stopped, problem, self.main.key, frozenset(one.key for one in self.others)


def problem_of(state: str, pid: int) -> str:
    """Return why no stack could be read of a process in this state.

    >>> problem_of("stopped", 7)
    'it is stopped, as by SIGSTOP (kill -CONT 7 continues it); py-spy on its host would show where it is'
    """
    if state == "stopped":
        return (
            f"it is stopped, as by SIGSTOP (kill -CONT {pid} continues it); py-spy on its host would show "
            "where it is"
        )
    if state == "disk-sleep":
        return (
            "it waits in the kernel, for a file system or a device that does not answer; py-spy on its host "
            "would show in which line"
        )
    return "it wrote no stacks within 2 s; py-spy on its host would show where it is"


class Stacks:
    """The stacks of tasks at one moment; its text is a sentence and a stack for each place.

    - ``tasks``: a `TaskStack` of each, in the order of ranks
    - ``code``: returns the line of code of a frame
    - ``full``: whether the text has all threads and all frames
    """

    def __init__(self, tasks: Sequence[TaskStack], code: Code = lambda frame: "", full: bool = False) -> None:
        self.tasks = list(tasks)
        self._code, self._full = code, full

    @property
    def groups(self) -> list[list[TaskStack]]:
        """The tasks at the same place together; the smallest group, which is the odd one out, first."""
        found = dict[object, list[TaskStack]]()
        for one in self.tasks:
            found.setdefault(one.key, []).append(one)
        return sorted(found.values(), key=len)

    def place(self, one: TaskStack) -> str:
        """Return where a task is, such as "at line 7 of the body: step()"; "" if it has no stack."""
        if one.problem:
            return ""
        main = one.main.place(self._code) if one.main.users else "not in code of yours"
        places = dict.fromkeys(thread.place(self._code) for thread in one.others)
        shown = [main, *(f"a thread of it {place}" for place in [*places][:MOST_THREADS])]
        more = [f"{len(places) - MOST_THREADS} more threads elsewhere"] if len(places) > MOST_THREADS else []
        return "; ".join([*shown, *more])

    def sentence(self, group: Sequence[TaskStack]) -> str:
        """Return where the tasks of a group are."""
        first, names = group[0], named([one.task for one in group])
        if first.problem:
            return f"{names}: {first.problem}"
        be = "are" if len(group) > 1 else "is"
        stopped = f"{be} stopped, as by SIGSTOP, and " if first.is_stopped else ""
        return f"{names} {stopped}{be} {self.place(first)}"

    @property
    def summary(self) -> str:
        """A line for each place."""
        return "\n".join(self.sentence(group) for group in self.groups)

    def to_dict(self) -> list[dict[str, Any]]:
        """Return plain values: a dictionary for each task."""
        return [
            {
                "task": one.task, "pid": one.pid, "state": one.state, "by": one.by, "problem": one.problem,
                "left_out": one.left_out,
                "threads": [
                    {
                        "name": thread.name, "main": thread.is_main,
                        "frames": [{**vars(frame), "code": self._code(frame)} for frame in thread.frames],
                    }
                    for thread in one.threads
                ],
            }
            for one in self.tasks
        ]  # fmt: skip

    def __str__(self) -> str:
        blocks = [lines for group in self.groups if (lines := self._block(group))]
        return "\n\n".join([self.summary, *("\n".join(lines) for lines in blocks)])

    __repr__ = __str__

    def _block(self, group: Sequence[TaskStack]) -> list[str]:
        """Return the stack of the first task of a group; of each one if the text is full."""
        if self._full:
            lines = [line for one in group for line in self._stack(one)]
        else:
            lines = self._stack(group[0])
            if lines and len(group) > 1:
                lines.append(f"  the same in {named([one.task for one in group[1:]])}")
        return lines

    def _stack(self, one: TaskStack) -> list[str]:
        shown = [thread for thread in one.threads if self._full or thread.users]
        if not shown:
            return []
        lines = [f"{one.task} (pid {one.pid}), read by {one.by}, the innermost call last:"]
        for thread in shown:
            if not thread.is_main or len(shown) > 1:
                name = "main thread" if thread.is_main else f"thread {thread.name}".rstrip()
                lines.append(f"  {name}:")
            lines += [f"  {row}" for row in thread.rows(self._code, self._full)]
        others = len(one.threads) - len(shown)
        if others:
            lines.append(f"  {others} other threads run no code of yours (--all shows them)")
        if one.left_out:
            lines.append(f"  {one.left_out} more threads are left out")
        return lines


def named(tasks: Sequence[str]) -> str:
    """Return the names of tasks, a few of them and the number of the others.

    >>> named(["worker:0"]), named(["worker:0", "worker:1"]), named([f"worker:{n}" for n in range(9)])
    ('worker:0', 'worker:0 and worker:1', 'worker:0, worker:1, worker:2, worker:3 and 5 others')
    """
    if len(tasks) > MOST_NAMED + 1:
        return f"{', '.join(tasks[:MOST_NAMED])} and {len(tasks) - MOST_NAMED} others"
    *first, last = tasks
    return f"{', '.join(first)} and {last}" if first else last


# What travels: plain values, and their limits. A frame is [origin, file, line, function].

RawFrame = list[Any]
RawThread = dict[str, Any]
"""Of one thread: "name", "main", and "frames", the innermost last."""


def parse_dump(dump: str) -> list[RawThread]:
    """Return the threads in a dump of Python's `faulthandler`, whose last thread is the main one.

    >>> dump = 'Thread 0x7f11 (most recent call first):\\n  File "/lib/queue.py", line 9 in get\\n'
    >>> dump += 'Current thread 0x7f12 [m] (most recent call first):\\n  File "<distribute r>", line 7 in f'
    >>> [(one["main"], one["frames"]) for one in parse_dump(dump)]
    [(True, [['body', '<distribute r>', 7, 'f']]), (False, [['module', '/lib/queue.py', 9, 'get']])]
    """
    threads: list[RawThread] = []
    for line in dump.splitlines():
        if begin := _THREAD.match(line):
            threads.append({"name": begin[1] or "", "main": False, "frames": []})
        elif threads and (frame := _FRAME.match(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            threads[-1]["frames"].insert(0, _raw_frame(frame[1], number, frame[3]))
    if threads:
        threads[-1]["main"] = True
    return [*threads[-1:], *threads[:-1]]


_THREAD = re.compile(r"(?:Current t|T)hread 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')


def parse_py_spy(dump: bytes) -> list[RawThread]:
    """Return the threads in what ``py-spy dump --json`` has written; none if that is not its format.

    >>> frame = {"name": "step", "filename": "<distribute r>", "line": 7}
    >>> thread = {"thread_name": "MainThread", "frames": [frame]}
    >>> parse_py_spy(json.dumps([thread]).encode())[0]["frames"]
    [['body', '<distribute r>', 7, 'step']]
    """
    try:
        found = [mapping(one) for one in listed(json.loads(dump))]
    except (ValueError, RecursionError):
        return []
    threads = []
    for one in found:
        name = text(one.get("thread_name"), LONGEST_FILE) or ""
        frames = [
            _raw_frame(
                text(frame.get("filename"), LONGEST_FILE) or NO_FILE,
                whole(frame.get("line")) or 0,
                text(frame.get("name"), LONGEST_FILE) or NO_FILE,
            )
            for frame in map(mapping, listed(one.get("frames")))
        ]
        threads.append({"name": name, "main": name == "MainThread", "frames": frames[::-1]})
    return sorted(threads, key=lambda one: not one["main"])


def _raw_frame(file: str, line: int, function: str) -> RawFrame:
    return [origin(file), file, line, function]


def shortened(threads: Sequence[RawThread], most: int) -> dict[str, Any]:
    """Return threads as plain values of about ``most`` bytes of JSON, and how many are left out.

    The main thread and those with code of the user's come first. Of a deep stack the middle is left out.

    >>> deep = {"name": "", "main": True, "frames": [["library", "a.py", n, "f"] for n in range(999)]}
    >>> kept = shortened([deep, deep], 5000)
    >>> [len(one["frames"]) for one in kept["threads"]], kept["left_out"]
    ([81], 1)
    """
    kept, size = list[RawThread](), 0
    users = [any(frame[0] in USERS for frame in one["frames"]) for one in threads]
    order = sorted(range(len(threads)), key=lambda i: (not threads[i]["main"], not users[i]))
    for i in order:
        one = {**threads[i], "frames": _without_middle(threads[i]["frames"])}
        size += len(json.dumps(one))
        if kept and size > most:
            break
        kept.append(one)
    return {"threads": kept, "left_out": len(threads) - len(kept)}


def _without_middle(frames: Sequence[RawFrame]) -> list[RawFrame]:
    """Return a stack of at most `MOST_FRAMES` calls, and a row that stands for those left out."""
    if len(frames) <= MOST_FRAMES:
        return list(frames)
    half = MOST_FRAMES // 2
    cut = [LIBRARY, NO_FILE, 0, f"... {len(frames) - MOST_FRAMES} more calls ..."]
    return [*frames[:half], cut, *frames[-half:]]


def _thread(raw: object, is_here: bool) -> Thread:
    one = mapping(raw)
    frames = [listed(frame) for frame in listed(one.get("frames"))]
    return Thread(
        text(one.get("name"), LONGEST_FILE) or "",
        one.get("main") is True,
        tuple(
            Frame(
                text(file, LONGEST_FILE) or NO_FILE,
                whole(line) or 0,
                text(function, LONGEST_FILE) or NO_FILE,
                text(of, 40) or LIBRARY,
                is_here,
            )
            for of, file, line, function in (frame for frame in frames if len(frame) == 4)
        ),
    )


def requests_for(tasks: Sequence[TaskInfo], most: int) -> list[list[int]]:
    """Return the ranks of tasks in groups of at most ``most`` on one host.

    >>> tasks = [TaskInfo("worker", n, n, "7f", 7, "", "CPU:0", 1, node="ab"[n % 2]) for n in range(5)]
    >>> requests_for(tasks, 2)
    [[0, 2], [4], [1, 3]]
    """
    on = dict[str, list[int]]()
    for task in tasks:
        on.setdefault(task.node, []).append(task.rank)
    return [ranks[first : first + most] for ranks in on.values() for first in range(0, len(ranks), most)]


def body_lines(run: str) -> dict[int, str]:
    """Return the lines of a run's body by number, as its run.json has them; none if it cannot be read."""
    try:
        found = read_run(run)
    except NbdistError:  # a trial of a sweep, say, or a damaged file
        return {}
    return dict(enumerate(found.code.splitlines(), found.first_line))


def code_from(lines_of: Callable[[str], Mapping[int, str]]) -> Code:
    """Return the function that finds the code of frames; ``lines_of`` returns a body's lines by number."""
    known = dict[str, Mapping[int, str]]()

    def code(frame: Frame) -> str:
        run = run_of(frame.file)
        if run and run not in known:
            known[run] = lines_of(run)
        line = known[run].get(frame.line, "") if run else line_here(frame)
        return clip(line.strip(), LONGEST_CODE)

    return code


def line_here(frame: Frame) -> str:
    """Return the line of a cell of this notebook, or of a module on this host; "" for another one."""
    known = frame.origin == NOTEBOOK or (frame.origin == MODULE and frame.is_here)
    return linecache.getline(frame.file, frame.line) if known else ""
