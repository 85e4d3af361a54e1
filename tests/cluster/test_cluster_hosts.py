"""The list of hosts, and the sentence for each way in which ssh ends. What ssh prints is OpenSSH 9.2's."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.cluster.hosts import CAUSES, MOST_BYTES, Host, find_cause, read_hosts, ssh_command, why_ssh_ended
from nbdist.errors import InvalidArgumentError, StorageError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a")]),
        ("a:2,b:2", [Host("a", 2), Host("b", 2)]),
        (" root@a:2 , b.example.org ", [Host("root@a", 2), Host("b.example.org")]),
        ("[fe80::1%eth0]:2,me@[::1]", [Host("fe80::1%eth0", 2), Host("me@::1")]),
        ("10.0.0.1:4096", [Host("10.0.0.1", 4096)]),
        (["a:1", "b"], [Host("a", 1), Host("b")]),
    ],
)
def test_a_list(text: str | list[str], hosts: list[Host]) -> None:
    assert read_hosts(text) == tuple(hosts)
    assert read_hosts([str(host) for host in hosts]) == tuple(hosts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the list is empty"),
        ([], "the list is empty"),
        ("a,,b", "'' is not a host"),
        ("a:2,b:2,", "'' is not a host"),
        ("a:0", "asks for 0 workers; a host has 1 to 4096"),
        ("a:99999999999999999999", "a host has 1 to 4096"),
        ("a:", "'a:' is not a host"),
        ("a:-1", "'a:-1' is not a host"),
        ("a:two", "'a:two' is not a host"),
        ("fe80::1", "an IPv6 address stands in brackets"),
        ("[a]:2", "'a' is not an IPv6 address"),
        ("-oProxyCommand=reboot", "is not a host"),
        ("-u@a", "is not a host"),
        ("a;reboot", "is not a host"),
        ("$(reboot)", "is not a host"),
        ("a b", "'a b' is not a host"),
        ("a" * 5000 + " b", "is not a host"),
        ("a\n", None),
        ("a,a", "a is listed twice, as 'a' and 'a'; list it once"),
        (
            "a:2,root@A:1",
            "listed twice, as 'a:2' and 'root@A:1'; list it once, with the number of its workers",
        ),
        (["a,b"], "'a,b' is not a host"),
    ],
)
def test_what_is_no_list(text: str | list[str], said: str | None) -> None:
    if said is None:
        assert read_hosts(text) == (Host("a"),)
        return
    with pytest.raises(InvalidArgumentError) as caught:
        read_hosts(text)
    assert said in str(caught.value)


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\na:2   # the big one\n\nuser@b slots=4\r\n[::1]\n")
    hosts = (Host("a", 2), Host("user@b", 4), Host("::1"))
    monkeypatch.chdir(tmp_path)
    assert [read_hosts(text) for text in (f"@{path}", str(path), "hosts", "@hosts")] == [hosts] * 4
    path.write_text("a\nb:x\n")
    with pytest.raises(InvalidArgumentError, match=r"'b:x' is not a host \(.*hosts, line 2\)"):
        read_hosts("@hosts")
    path.write_text("a\n# only\na:2\n")
    with pytest.raises(InvalidArgumentError, match=r"'a' and 'a:2' \(.*hosts, line 3\)"):
        read_hosts("@hosts")
    path.write_bytes(b"a\n" * MOST_BYTES)
    with pytest.raises(InvalidArgumentError, match="not a list of hosts"):
        read_hosts("@hosts")
    path.unlink()
    with pytest.raises(StorageError, match=r"hosts cannot be read: No such file.*one host a line"):
        read_hosts("@hosts")
    assert read_hosts("hosts") == (Host("hosts"),)


@settings(max_examples=examples(200))
@given(st.text(max_size=40))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    """A name never begins with a dash, which ssh would take for an option, and has no letter of a shell."""
    if "/" in text or text.strip().startswith("@"):
        return
    try:
        hosts = read_hosts(text)
    except InvalidArgumentError:
        return
    for host in hosts:
        assert not host.name.startswith("-")
        assert not set(host.name) & set("'\"`$\\;&<>|(){}*?!\n\x00 ")
        assert read_hosts([str(host)]) == (host,)


def test_the_command_has_the_name_where_it_is_no_option() -> None:
    command = ssh_command("a", "hostname", options=("-o", "ControlMaster=auto"))
    assert command[:2] == ["ssh", "-T"]
    assert command[-5:] == ["-o", "ControlMaster=auto", "--", "a", "hostname"]
    assert "BatchMode=yes" in command


CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /home/me/.ssh/known_hosts:7
Host key for a has changed and you have requested strict checking.
Host key verification failed.
"""
JUMP = """\
channel 0: open failed: connect failed: Connection refused
stdio forwarding failed
kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535
"""
OPEN_KEY = """\
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
Permissions 0644 for '/home/me/.ssh/id' are too open.
This private key will be ignored.
root@10.0.0.1: Permission denied (publickey).
"""
TRACEBACK = "Traceback (most recent call last):\n  File ...\nModuleNotFoundError: No module named 'numpy'\n"


@pytest.mark.parametrize(
    ("name", "status", "stderr", "said"),
    [
        ("name", 255, "ssh: Could not resolve hostname a: Name or service not known\r\n", "HostName"),
        ("name", 255, "ssh: Could not resolve hostname a: nodename nor servname provided", "name a does not"),
        (
            "name server",
            255,
            "ssh: Could not resolve hostname a: Temporary failure in name resolution",
            "no name server answers",
        ),
        ("route", 255, "ssh: connect to host 10.1.2.3 port 22: No route to host", "no route to 10.1.2.3"),
        ("route", 255, "ssh: connect to host 10.1.2.3 port 22: Network is unreachable", "VPN"),
        (
            "refused",
            255,
            "ssh: connect to host 10.0.0.1 port 2222: Connection refused",
            "port 2222 of 10.0.0.1",
        ),
        ("filtered", 255, "ssh: connect to host 10.0.0.1 port 22: Connection timed out", "firewall"),
        ("filtered", 255, "ssh: connect to host 10.0.0.1 port 22: Operation timed out", "firewall"),
        (
            "frozen",
            255,
            "Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out\n",
            "frozen or overloaded",
        ),
        ("behind a jump host", 255, JUMP, "(Connection refused)"),
        ("host key changed", 255, CHANGED, "/home/me/.ssh/known_hosts:7"),
        ("host key unknown", 255, "Host key verification failed.\r\n", "confirm the key"),
        (
            "host key unknown",
            255,
            "No ED25519 host key is known for a and you have requested strict checking.\n"
            "Host key verification failed.",
            "confirm the key",
        ),
        ("host key revoked", 255, "@ WARNING: REVOKED HOST KEY DETECTED! @", "revoked"),
        ("key", 255, "root@10.0.0.1: Permission denied (publickey,password).\r\n", "ssh-copy-id a"),
        ("private key", 255, OPEN_KEY, "chmod 600 /home/me/.ssh/id"),
        (
            "agent",
            255,
            'sign_and_send_pubkey: signing failed for ED25519-SK "/home/me/.ssh/id": device not found\n'
            "a: Permission denied (publickey).",
            "ED25519-SK",
        ),
        ("too many keys", 255, "Received disconnect: Too many authentication failures", "IdentitiesOnly"),
        ("closed at once", 255, "kex_exchange_identification: read: Connection reset by peer", "MaxStartups"),
        ("closed at once", 255, "Connection closed by 10.0.0.1 port 22\r\n", "MaxStartups"),
        ("ciphers", 255, "no matching host key type found. Their offer: ssh-rsa", "host key type found"),
        ("lost", 255, "client_loop: send disconnect: Broken pipe", "connection was lost"),
        ("lost", 255, "Timeout, server 10.0.0.1 not responding.", "connection was lost"),
        ("lost", 255, "Connection to 10.0.0.1 closed by remote host.", "connection was lost"),
        (
            "configuration",
            255,
            "/home/me/.ssh/config: line 14: Bad configuration option: wrong\n",
            "Bad configuration option: wrong",
        ),
        ("configuration", 255, "Bad owner or permissions on /home/me/.ssh/config", "/home/me/.ssh/config"),
        ("configuration", 255, 'unix_listener: path "/home/me" too long for Unix domain socket', "too long"),
        (
            "refused",
            255,
            '/home/me/.ssh/config line 3: Unsupported option "gssapiauthentication"\n'
            "unix_listener: cannot bind to path /home/me/c: No such file or directory\n"
            "ssh: connect to host 10.0.0.1 port 22: Connection refused\n",
            "port 22 of 10.0.0.1",
        ),
        ("killed", 255, "", "ended by a signal"),
        ("process limit", 255, "shell request failed on channel 0", "ulimit -u"),
        ("process limit", 254, "bash: fork: retry: Resource temporarily unavailable", "ulimit -u"),
        ("quota", 1, "OSError: [Errno 122] Disk quota exceeded: '/home/me'", "quota"),
        ("disk", 1, "OSError: [Errno 28] No space left on device", "is full"),
        ("nbdist", 1, "/usr/bin/python3: No module named nbdist.cluster.x", "no nbdist.cluster.x"),
        ("nbdist", 1, "ModuleNotFoundError: No module named 'nbdist'", "install the nbdist of this host"),
        ("module", 1, TRACEBACK, "no module numpy"),
        ("command", 127, "bash: line 1: python: command not found\n", "python: command not found"),
        ("command", 127, "Welcome!\nfish: Unknown command: python\r\n", "(fish: Unknown command: python"),
        (
            "old Python",
            1,
            "ImportError: nbdist needs Python 3.11 or newer, and this is 3.8.10\n",
            "is 3.8.10,",
        ),
        ("command", 127, "", "finds no such command"),
        ("command", 126, "sh: 1: /opt/python: Permission denied", "/opt/python"),
        ("late", None, "", "within the limit"),
        ("unexplained", 3, "a\nlast words\n\n", "status 3: last words"),
        ("unexplained", -15, "", "status -15; try `ssh a`"),
        ("unexplained", 255, "new words of ssh", "status 255: new words of ssh"),
    ],
)
def test_why_ssh_ended(name: str, status: int | None, stderr: str, said: str) -> None:
    assert find_cause(status, stderr)[0].name == name
    sentence = why_ssh_ended("a", status, stderr)
    assert sentence.startswith("host a: ")
    assert said in sentence
    assert "\n" not in sentence
    assert "{" not in sentence


def test_each_row_has_a_sample() -> None:
    (mark,) = (mark for mark in test_why_ssh_ended.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {cause.name for cause in CAUSES} <= {sample[0] for sample in mark.args[1]}


def test_what_a_host_prints_is_shortened() -> None:
    sentence = why_ssh_ended("a", 127, "x\x1b[31m" * 10_000)
    assert len(sentence) < 500
    assert sentence.isprintable()
