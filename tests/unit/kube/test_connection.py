"""Where the configuration comes from, and how credentials are renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from inferencecache.kube.connection import ConnectionConfigError, connect


def kubeconfig(path: Path, *, host: str, token: str = "t") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://{host}/"}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


async def url_of(given: Any = None) -> str:
    async with await connect(given) as connection:
        return connection.url


async def test_the_flag_wins_over_the_environment_and_that_over_the_home_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig(home / ".kube" / "config", host="home")
    assert await url_of() == "http://home"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home / "environment", host="environment")))
    assert await url_of() == "http://environment"
    assert await url_of(kubeconfig(home / "flag", host="flag")) == "http://flag"


async def test_a_context_chooses_within_a_file_and_passes_the_pods_account_over(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(home / ".kube" / "config", host="current")
    config = yaml.safe_load(path.read_text())
    config["clusters"].append({"name": "d", "cluster": {"server": "http://other/"}})
    config["contexts"].append({"name": "d", "context": {"cluster": "d", "user": "u"}})
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    async with await connect(context="d") as connection:
        assert connection.url == "http://other"
    with pytest.raises(ConnectionConfigError, match="nowhere"):
        await connect(context="nowhere")


async def test_nothing_to_connect_to_says_what_to_do(home: Path) -> None:
    with pytest.raises(ConnectionConfigError, match="give --kubeconfig, set KUBECONFIG"):
        await connect()


@pytest.mark.parametrize("content", [None, "", "]", "kind: Config", "current-context: nowhere"])
async def test_an_unusable_file_is_named(home: Path, content: str | None) -> None:
    path = home / "bad"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConnectionConfigError, match=f"kubeconfig {path} cannot be used"):
        await connect(path)


async def test_a_rotated_token_is_read_again(home: Path) -> None:
    path = kubeconfig(home / "k", host="x", token="old")
    async with await connect(path) as connection:
        assert await connection.authorization() == "Bearer old"
        assert not await connection.renew_authorization("Bearer old"), "nothing changed on disk"
        kubeconfig(path, host="x", token="new")
        assert await connection.renew_authorization("Bearer old")
        assert await connection.authorization() == "Bearer new"
