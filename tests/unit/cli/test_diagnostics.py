"""`doctor` and `explain` end with 3, and nothing else, when they could not look (docs/doctor.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from inferencecache.cli.main import app


def run(*args: str) -> Result:
    return CliRunner().invoke(app, args, env={"KUBECONFIG": "", "HOME": "/nonexistent", "KUBERNETES_SERVICE_HOST": ""})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("doctor --bogus", "--bogus"),
        ("doctor -o xml", "'xml'"),
        ("doctor positional", "positional"),
        ("doctor --timeout 5", "is not a duration"),
        ("doctor --timeout 0s", "--timeout must be more than zero"),
        ("doctor --config-only=perhaps", "needs true or false"),
        ("doctor --server-endpoint http://x", "--server-endpoint: 'http://x' is no address"),
        ("doctor --server-ca-file /nonexistent", "--server-ca-file=/nonexistent"),
        ("doctor --config-only", "no cluster to talk to"),
        ("doctor --kubeconfig /nonexistent", "kubeconfig /nonexistent"),
        ("explain", "Missing argument"),
        ("explain node x", "'node'"),
        ("explain pod x --bogus", "--bogus"),
        ("explain pod x", "no cluster to talk to"),
    ],
)
def test_what_keeps_a_command_from_looking_is_one_sentence_and_exit_3(line: str, said: str) -> None:
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (3, "")
    assert said in result.stderr
    (sentence,) = [one for one in result.stderr.splitlines() if one.startswith("error: ")]
    assert sentence


def test_help_is_no_mistake() -> None:
    assert run("doctor", "--help").exit_code == run("explain", "--help").exit_code == 0


def test_garbage_for_a_kubeconfig_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("]")
    result = run("doctor", "--kubeconfig", str(tmp_path / "bad"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert str(tmp_path / "bad") in result.stderr
