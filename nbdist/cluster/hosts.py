"""The hosts that a user names, and why the system's ssh does not reach one.

    read_hosts("a:2,user@b")                      # (Host("a", 2), Host("user@b", None))
    ssh_command("user@b", "hostname")             # what runs a command there
    why_ssh_ended("user@b", 255, stderr)          # one sentence: the cause, and what to do

A host's name is what the user would type after ``ssh``: an alias of the configuration, a name or an address.
What ssh prints decides on the cause; `CAUSES` has one row for each, in the order that they are tried.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.text import clip

MOST_SLOTS = 4096
SENTENCE = 78  # exit code of our programs on a host whose last line is the sentence about it
MOST_BYTES = 1 << 20  # of a file with hosts
LONGEST_REASON = 300  # characters of ssh's own words in a sentence

EXAMPLE = "hosts are written like a:2,user@b,[fe80::1]:2"
ENTRY = re.compile(
    r"(?P<user>[^\s@:,\[\]-][^\s@:,\[\]]*@)?"
    r"(?:\[(?P<address>[^\[\]\s]+)\]|(?P<name>[^\s@:,\[\]-][^\s@:,\[\]]*))"
    r"(?::(?P<slots>[0-9]+))?"
)
# ssh hands a name to a shell where the configuration has a ProxyCommand or a Match exec.
FORBIDDEN = re.compile(r"['\"`$\\;&<>|(){}*?!\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Host:
    """A host of the user's list.

    - ``name``: what ssh takes, such as "a", "user@a" or "user@fe80::1"
    - ``slots``: the number of workers there, from 1; None if the user gave none
    """

    name: str
    slots: int | None = None

    @property
    def machine(self) -> str:
        """Its name without the user's, by which two entries are the same host."""
        return self.name.rpartition("@")[2].casefold()

    def __str__(self) -> str:
        """Return it as a user writes it.

        >>> str(Host("root@fe80::1", 2))
        'root@[fe80::1]:2'
        """
        user, at, machine = self.name.rpartition("@")
        machine = f"[{machine}]" if ":" in machine else machine
        return f"{user}{at}{machine}" + (f":{self.slots}" if self.slots else "")


def read_hosts(text: str | Sequence[str]) -> tuple[Host, ...]:
    """Return the hosts of a list, or of a file that it names.

    - ``text``: entries ``[user@]host[:workers]`` with commas between them, or a sequence of such entries; an
      IPv6 address stands in brackets. ``@FILE``, or the path of a file that is there, has one entry on each
      line, ``host:2`` or ``host slots=2``; what follows a ``#`` is a comment.

    Raises InvalidArgumentError, which names the entry, for one that is no host, for a host that is listed
    twice, for a number of workers that is not 1 to 4096, and for an empty list; StorageError for a file that
    cannot be read.

    >>> read_hosts("a:2, user@b")
    (Host(name='a', slots=2), Host(name='user@b', slots=None))
    """
    if isinstance(text, str):
        if (path := _file_of(text)) is not None:
            return _collected(_lines(path))
        text = text.split(",") if text.strip() else []
    return _collected((entry, "") for entry in text)


def _file_of(text: str) -> Path | None:
    text = text.strip()
    if text.startswith("@"):
        return Path(text[1:]).expanduser()
    if "/" in text or (text and "," not in text and os.path.isfile(text)):
        return Path(text).expanduser()
    return None


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Return the entries of a file, each with the place that an error names."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise StorageError(
            f"hosts: {path} cannot be read: {error.strerror}; give a file with one host a line, or {EXAMPLE}"
        ) from None
    if len(content) > MOST_BYTES:
        raise InvalidArgumentError(
            f"hosts: {path} has more than {MOST_BYTES:,} bytes: it is not a list of hosts"
        )
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if entry := line.partition("#")[0].strip():
            yield re.sub(r"\s+slots\s*=\s*", ":", entry), f" ({path}, line {number})"


def _collected(entries: Iterator[tuple[str, str]]) -> tuple[Host, ...]:
    hosts: dict[str, Host] = {}
    for entry, place in entries:
        host = _host(entry.strip(), place)
        if other := hosts.get(host.machine):
            raise InvalidArgumentError(
                f"hosts: {host.machine} is listed twice, as {str(other)!r} and {str(host)!r}{place}; list it "
                f"once, with the number of its workers, such as {Host(host.name, 2)}"
            )
        hosts[host.machine] = host
    if not hosts:
        raise InvalidArgumentError(f"hosts: the list is empty; {EXAMPLE}, or @FILE has one on each line")
    return tuple(hosts.values())


def _host(entry: str, place: str) -> Host:
    if (found := ENTRY.fullmatch(entry)) is None or FORBIDDEN.search(entry):
        bare = "; an IPv6 address stands in brackets" if entry.count(":") > 1 and "[" not in entry else ""
        raise InvalidArgumentError(f"hosts: {clip(entry)!r} is not a host{place}{bare}; {EXAMPLE}")
    name = found["name"] or found["address"]
    if found["address"]:
        try:
            ipaddress.IPv6Address(name)
        except ValueError:
            raise InvalidArgumentError(
                f"hosts: {clip(name)!r} is not an IPv6 address{place}; only those stand in brackets"
            ) from None
    slots = None if found["slots"] is None else int(found["slots"][:9])
    if slots is not None and not 1 <= slots <= MOST_SLOTS:
        raise InvalidArgumentError(
            f"hosts: {clip(entry)!r} asks for {slots} workers{place}; a host has 1 to {MOST_SLOTS}"
        )
    return Host((found["user"] or "") + name, slots)


def ssh_command(
    host: str, command: str, *, connect_seconds: int = 6, options: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of the system's ssh that runs a command of a host's shell.

    It asks for nothing, and reports its errors. All else is the user's configuration: keys, agent, jump hosts
    and which host keys are trusted.

    - ``host``: what ssh takes, see `Host`
    - ``command``: text for the shell there. Users of both hosts can read it: it has no secrets
    - ``connect_seconds``: the limit for the connection, whole seconds, above 0
    - ``options``: further arguments of ssh, such as ``("-o", "ControlMaster=auto")``

    >>> ssh_command("a", "hostname")[-3:]
    ['--', 'a', 'hostname']
    """
    given = ("BatchMode=yes", f"ConnectTimeout={connect_seconds}", "LogLevel=INFO")
    return ["ssh", "-T", *(part for one in given for part in ("-o", one)), *options, "--", host, command]


def shell_word(path: str) -> str:
    """Return a path as a word of a host's shell; "~/" at its beginning is the user's home there.

    >>> shell_word("~/my env/bin/python"), shell_word("/usr/bin/python3")
    ("~/'my env/bin/python'", '/usr/bin/python3')
    """
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


@dataclass(frozen=True)
class Cause:
    """Why ssh ends without a result.

    - ``name``: of the row, for tests and programs
    - ``pattern``: what ssh, or the shell of the host, prints then; its named groups are values of the text
    - ``text``: what is wrong with the host and what to do, of the groups and ``{host}``
    - ``status``: the exit statuses with which it is looked for; 255 is ssh's own
    """

    name: str
    pattern: str
    text: str
    status: tuple[int, ...] = (255,)


# A jump host's ssh reports first what happens behind it: these rows are tried before the direct ones.
BEHIND = r"open failed: .*"
TO = r"connect to host (?P<at>\S+) port (?P<port>[0-9]+): "

CAUSES = (
    Cause(
        "configuration",
        r"(?P<said>Bad owner or permissions on \S+|Can't open user config file .+|"
        r"\S+ line [0-9]+: Bad .+|.+ line [0-9]+: missing .+|terminating, [0-9]+ bad configuration options|"
        r"unix_listener: path .* too long .*)",
        "the configuration of ssh on this host is not accepted ({said}); correct it",
    ),
    Cause(
        "behind a jump host",
        rf"{BEHIND}(?P<said>Name or service not known|Temporary failure in name resolution|"
        r"Connection refused|Connection timed out|No route to host|Network is unreachable|"
        r"administratively prohibited.*)",
        "the jump host cannot reach it ({said}); log in to the jump host and try `ssh {host}` there",
    ),
    Cause(
        "name server",
        r"Could not resolve hostname (?P<name>\S+): Temporary failure in name resolution",
        "the name {name} does not resolve, because no name server answers; check this host's network, or "
        "give its address in ~/.ssh/config (HostName)",
    ),
    Cause(
        "name",
        r"Could not resolve hostname (?P<name>\S+): ",
        "the name {name} does not resolve; correct it, or give its address in ~/.ssh/config (HostName) or "
        "/etc/hosts",
    ),
    Cause(
        "route",
        rf"{TO}(?P<said>No route to host|Network is unreachable|Invalid argument)",
        "there is no route to {at}; check that the host is on and that this host is in its network or VPN",
    ),
    Cause(
        "refused",
        rf"{TO}Connection refused",
        "nothing listens on port {port} of {at}: start its sshd there, or have it listen on more than "
        "localhost (ListenAddress), or give its port in ~/.ssh/config",
    ),
    Cause(
        "filtered",
        rf"{TO}(?:Connection|Operation) timed out",
        "port {port} of {at} does not answer: the host is off, or a firewall drops the packets; open the "
        "port, or give a jump host in ~/.ssh/config (ProxyJump)",
    ),
    Cause(
        "frozen",
        r"timed out during banner exchange|Connection to (?:\S+ port [0-9]+|UNKNOWN port -?[0-9]+) timed out",
        "it accepts connections, but its sshd does not answer: the host is frozen or overloaded; look at its "
        "console",
    ),
    Cause(
        "host key changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED(?s:.*?)Offending \S+ key in (?P<place>\S+)",
        "its host key is not the one in {place}: if the host was installed again, remove that line and log "
        "in once by `ssh {host}`; else another machine answers in its place",
    ),
    Cause(
        "host key revoked",
        r"REVOKED HOST KEY",
        "its host key is revoked; ask for the new one and put it into ~/.ssh/known_hosts",
    ),
    Cause(
        "host key unknown",
        r"Host key verification failed|No \S+ host key is known for (?P<name>\S+)",
        "its host key is not known on this host; log in once by `ssh {host}` and confirm the key",
    ),
    Cause(
        "ciphers",
        r"no matching (?P<said>.+ found)",
        "ssh and its sshd have nothing in common (no matching {said}); update the older of them",
    ),
    Cause(
        "private key",
        r"UNPROTECTED PRIVATE KEY FILE(?s:.*?)Permissions \S+ for '(?P<key>[^']+)'",
        "ssh does not use the key {key}, which others can read; run chmod 600 {key}",
    ),
    Cause(
        "agent",
        r"sign_and_send_pubkey: signing failed for (?P<said>.+)",
        "the agent did not sign with the key ({said}); touch the security key when it blinks, or run ssh-add",
    ),
    Cause(
        "too many keys",
        r"Too many authentication failures",
        "its sshd refused the keys before the right one; name that one in ~/.ssh/config (IdentityFile, "
        "IdentitiesOnly yes)",
    ),
    Cause(
        "key",
        r"Permission denied(?: \((?P<methods>[^)]*)\))?",
        "it refuses this user's keys; run `ssh-copy-id {host}`, or ssh-add where the key has a passphrase, "
        "or give the user's name there, as in user@host",
    ),
    Cause(
        "closed at once",
        r"kex_exchange_identification|ssh_exchange_identification|Connection (?:closed|reset) by .* port "
        r"[0-9]+\s*\Z",
        "its sshd closes the connection before the login: too many connections (MaxStartups), or it refuses "
        "this host's address; look at its log",
    ),
    Cause(
        "lost",
        r"Broken pipe|Connection (?:closed|reset)|Timeout, server .* not responding|client_loop: |"
        r"Connection to \S+ closed by remote host",
        "the connection was lost; check that the host is on and its network",
    ),
    Cause(
        "killed",
        r"\A\s*\Z",
        "its command was ended by a signal there, as when memory runs out; look at `dmesg` there",
    ),
    Cause(
        "process limit",
        r"(?:exec|shell) request failed|[Ff]ork.*: Resource temporarily unavailable",
        "it cannot start a process for this user; raise the limit there (ulimit -u)",
        status=(1, 126, 254, 255),
    ),
    Cause(
        "quota",
        r"(?:Disk quota exceeded|EDQUOT)",
        "this user's disk quota there is used up; delete files",
        status=(),
    ),
    Cause("disk", r"No space left on device", "a disk there is full; delete files", status=()),
    Cause(
        "old Python",
        r"nbdist needs Python 3.11 or newer, and this is (?P<version>[0-9.]+)",
        "its Python is {version}, and nbdist needs 3.11 or newer; name another one with --python PATH",
        status=(1,),
    ),
    Cause(
        "nbdist",
        r"No module named '?(?P<module>nbdist(?:\.[\w.]+)?)'?",
        "its Python has no {module}; install the nbdist of this host there",
        status=(1,),
    ),
    Cause(
        "module",
        r"No module named '?(?P<module>[\w.]+)'?",
        "its Python has no module {module}; install it there",
        status=(1,),
    ),
    Cause(
        "command",
        r"(?P<said>[^\n]*)\s*\Z",
        "the shell there finds no such command ({said}); install it, or name the Python there with "
        "--python PATH",
        status=(126, 127),
    ),
)
"""Why ssh ends: the first row whose status and pattern fit. A row without a status fits any but 0."""

UNEXPLAINED = Cause("unexplained", "", "ssh ended with status {status}{said}; try `ssh {host}` in a terminal")
LATE = Cause(
    "late",
    "",
    "it did not answer within the limit: the host is frozen or overloaded, or its network is cut; try "
    "`ssh {host}` in a terminal",
)


def why_ssh_ended(host: str, status: int | None, stderr: str) -> str:
    """Return one sentence that names a host, why ssh to it ended, and what to do.

    - ``host``: as ssh took it
    - ``status``: ssh's exit status, not 0: 255 is an error of its own, any other that of the command there;
      negative for a signal. None if it was ended at its time limit
    - ``stderr``: all that it printed there

    >>> why_ssh_ended("a", 255, "Permission denied (publickey).")[:34]
    "host a: it refuses this user's key"
    """
    last = stderr.strip().rpartition("\n")[2]
    if status == SENTENCE and last.startswith(f"host {host}: "):
        return last
    cause, values = find_cause(status, stderr)
    return f"host {host}: {cause.text.format_map(values | {'host': host})}"


def find_cause(status: int | None, stderr: str) -> tuple[Cause, dict[str, str]]:
    """Return the row that explains why ssh ended, and the values of its text but the host."""
    for cause in CAUSES:
        if (
            status
            and (status in cause.status or not cause.status)
            and (found := re.search(cause.pattern, stderr))
        ):
            values = {
                name: clip((value or "").strip(), LONGEST_REASON) for name, value in found.groupdict().items()
            }
            return cause, values
    if status is None:
        return LATE, {}
    lines = [line for line in stderr.splitlines() if line.strip()]
    said = f": {clip(lines[-1].strip(), LONGEST_REASON)}" if lines else ""
    return UNEXPLAINED, {"status": str(status), "said": said}
