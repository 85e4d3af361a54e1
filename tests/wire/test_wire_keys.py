from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nbdist.errors import InvalidArgumentError, NotAllowedError, NotFoundError
from nbdist.wire.keys import ClusterKeys, secret_folder


def test_save_and_load(tmp_path: Path) -> None:
    keys = ClusterKeys.create()
    old = os.umask(0)
    try:
        keys.save(tmp_path / "keys")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
    assert ClusterKeys.load(tmp_path / "keys") == keys
    assert ClusterKeys.from_dict(keys.to_dict()) == keys


def test_the_secret_key_is_hidden() -> None:
    keys = ClusterKeys.create()
    for text in (repr(keys), str(keys), f"{keys}", repr([keys])):
        assert keys.secret not in text
    with pytest.raises(InvalidArgumentError) as caught:
        ClusterKeys.from_dict({"public": keys.public, "secret": keys.secret + "!"})
    assert keys.secret not in str(caught.value)


def test_an_existing_file_or_link_is_not_overwritten(tmp_path: Path) -> None:
    keys = ClusterKeys.create()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("file", "link"):
        with pytest.raises(NotAllowedError):
            keys.save(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_untrustworthy_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(NotFoundError):
        ClusterKeys.load(path)
    ClusterKeys.create().save(path)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(NotAllowedError):
        ClusterKeys.load(tmp_path / "link")
    path.chmod(0o640)
    with pytest.raises(NotAllowedError, match="0640"):
        ClusterKeys.load(path)
    path.chmod(0o600)
    with pytest.raises(NotAllowedError):
        ClusterKeys.load(tmp_path)
    path.write_text("{}")
    with pytest.raises(InvalidArgumentError, match="not a key file"):
        ClusterKeys.load(path)
    path.write_text("garbage")
    with pytest.raises(InvalidArgumentError, match="not a key file"):
        ClusterKeys.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    ClusterKeys.create().save(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(NotAllowedError, match="belongs to user 65534"):
        ClusterKeys.load(path)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(NotAllowedError, match="belongs to user 65534"):
        secret_folder(tmp_path)


def test_secret_folder(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = secret_folder(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    secret_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotAllowedError):
        secret_folder(tmp_path / "link")
