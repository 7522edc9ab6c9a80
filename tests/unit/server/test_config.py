"""The configuration file: what it may say, and what is wrong with what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.metrics.address import Address
from polymux.server.config import read_config
from polymux.server.options import KernelsFile, RuntimeOptions


def written(folder: Path, text: str) -> Path:
    file = folder / "polymux.toml"
    file.write_text(text)
    return file


def test_an_empty_file_means_the_standard_options(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, ""))
    assert config.socket is None
    assert config.runtime == RuntimeOptions()


def test_every_setting_is_read_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = read_config(
        written(
            tmp_path,
            """
            socket = "run/p.sock"
            devices = ["cpu", "opencl:0,streams=2"]
            policy = "least_loaded"
            kernels = ["a.py", { file = "b.toml", isolate = true }]
            allow_uids = [1000, 1001]
            trace = "t.json"
            record = "/abs/r.jsonl"
            metrics = "[::1]:9464"
            [limits]
            segment_nbytes = "64 MiB"
            max_segment_nbytes = 1073741824
            max_clients = 7
            worker_nbytes = "1 GiB"
            """,
        )
    )
    runtime = config.runtime
    assert config.socket == tmp_path / "run/p.sock"
    assert runtime.devices == ("cpu", "opencl:0,streams=2")
    assert runtime.policy == "least_loaded"
    assert runtime.kernels == (KernelsFile(tmp_path / "a.py"), KernelsFile(tmp_path / "b.toml", True))
    assert runtime.allow_uids == (1000, 1001)
    assert (runtime.trace, runtime.record) == (tmp_path / "t.json", Path("/abs/r.jsonl"))
    assert runtime.metrics == Address("::1", 9464)
    assert (runtime.limits.segment_nbytes, runtime.limits.max_segment_nbytes) == (64 << 20, 1 << 30)
    assert (runtime.limits.max_clients, runtime.limits.worker_nbytes) == (7, 1 << 30)


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("sokcet = 'x'", "sokcet", "known are socket"),
        ("socket = 1", "socket", "give a text"),
        ("devices = 'cpu'", "devices", "list of texts"),
        ("devices = ['']", "devices", "list of texts"),
        ("policy = ''", "policy", "give a text"),
        ("kernels = 'a.py'", "kernels", "list of files"),
        ("kernels = [1]", "kernels", "list of files"),
        ("kernels = [{ file = 'a.py', isolated = true }]", "kernels.isolated", "known are file"),
        ("kernels = [{ file = 'a.py', isolate = 1 }]", "kernels.isolate", "true or false"),
        ("allow_uids = [-1]", "allow_uids", "list of user ids"),
        ("allow_uids = [true]", "allow_uids", "list of user ids"),
        ("metrics = 'here'", "metrics", "give \\[HOST:\\]PORT"),
        ("metrics = ''", "metrics", "give a text"),
        ("metrics = true", "metrics", "give a text"),
        ("metrics = 70000", "metrics", "port from 0 to 65535"),
        ("limits = 3", "limits", "table"),
        ("[limits]\nmax_clients = 121", "limits.max_clients", "1 to 120"),
        ("[limits]\nmax_clients = 0", "limits.max_clients", "1 to 120"),
        ("[limits]\nsegment_nbytes = 'much'", "limits.segment_nbytes", "GiB"),
        ("[limits]\nsegment_nbytes = 1", "limits.segment_nbytes", "or more"),
        ("[limits]\nworker_nbytes = '64 MiB'", "limits.worker_nbytes", "536870912 bytes or more"),
        (
            "[limits]\nmax_segment_nbytes='64 MiB'\nsegment_nbytes='65 MiB'",
            "limits.segment_nbytes",
            "at most",
        ),
        ("[limits]\nclients = 3", "limits.clients", "known are"),
        ("a = = 1", "TOML", "syntax"),
    ],
)
def test_a_bad_setting_is_refused_with_file_key_and_remedy(
    tmp_path: Path, text: str, key: str, remedy: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match=remedy) as caught:
        read_config(file)
    assert (caught.value.file, caught.value.key) == (str(file), key)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_config(tmp_path / "nowhere.toml")
