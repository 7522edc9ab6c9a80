"""The socket's path: taken, stale, foreign."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from polymux.core.errors import InvalidRequest, PermissionDenied
from polymux.server.listening import AddressInUseError, Listener


def test_missing_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "run" / "polymux.sock")
    assert os.stat(tmp_path / "run").st_mode & 0o777 == 0o700
    listener.close()
    assert not (tmp_path / "run" / "polymux.sock").exists()


def test_a_second_server_is_refused_with_a_remedy(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "s")
    with pytest.raises(AddressInUseError, match="polymux down"):
        Listener(tmp_path / "s")
    listener.close()
    Listener(tmp_path / "s").close()


def test_what_a_dead_server_left_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(tmp_path / "s"))
    dead.close()
    Listener(tmp_path / "s").close()


def test_a_living_server_that_holds_no_lock_is_respected_all_the_same(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(tmp_path / "s"))
        other.listen()
        with pytest.raises(AddressInUseError):
            Listener(tmp_path / "s")
    assert (tmp_path / "s").exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(InvalidRequest, match="no socket"):
        Listener(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "precious"


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        Listener(tmp_path / ("x" * 120))


def test_a_folder_where_others_could_replace_the_socket_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionDenied, match="0777"):
        Listener(folder / "s")


def test_a_socket_that_somebody_else_has_put_there_meanwhile_is_not_removed(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "s")
    os.unlink(tmp_path / "s")
    (tmp_path / "s").write_text("another one's")
    listener.close()
    assert (tmp_path / "s").exists()
