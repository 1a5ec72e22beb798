"""Command lines written for Go's flag package mean the same here."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from inferencecache.cli.flags import GoCommand, bind_address, duration

app = typer.Typer(add_completion=False)


@app.command(cls=GoCommand)
def _echo(
    kubeconfig: str = "",
    webhook_port: int = 9443,
    leader_elect: Annotated[bool, typer.Option("--leader-elect/--no-leader-elect")] = False,
    output: Annotated[str, typer.Option("--output", "-o")] = "yaml",
    filename: Annotated[list[str] | None, typer.Option("--filename", "-f")] = None,
    interval: Annotated[timedelta, typer.Option(parser=duration)] = timedelta(0),
) -> None:
    typer.echo(f"{kubeconfig}|{webhook_port}|{leader_elect}|{output}|{filename or []}|{interval.total_seconds():g}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "|9443|False|yaml|[]|0"),
        ("-kubeconfig x", "x|9443|False|yaml|[]|0"),
        ("--kubeconfig x", "x|9443|False|yaml|[]|0"),
        ("-kubeconfig=x", "x|9443|False|yaml|[]|0"),
        ("--kubeconfig=", "|9443|False|yaml|[]|0"),
        ("--kubeconfig=a=b", "a=b|9443|False|yaml|[]|0"),
        ("-kubeconfig -leader-elect", "-leader-elect|9443|False|yaml|[]|0"),  # a value, because a value is due
        ("-leader-elect", "|9443|True|yaml|[]|0"),
        ("--leader-elect=true", "|9443|True|yaml|[]|0"),
        ("-leader-elect=1", "|9443|True|yaml|[]|0"),
        ("--leader-elect=F", "|9443|False|yaml|[]|0"),
        ("--leader-elect --leader-elect=false", "|9443|False|yaml|[]|0"),  # the last one counts
        ("--no-leader-elect=false", "|9443|True|yaml|[]|0"),
        ("-o json", "|9443|False|json|[]|0"),
        ("-o=json", "|9443|False|json|[]|0"),
        ("-ojson", "|9443|False|json|[]|0"),
        ("-f a -f - --filename=b", "|9443|False|yaml|['a', '-', 'b']|0"),
        ("-webhook-port 1 -interval 1h30m", "|1|False|yaml|[]|5400"),
        ("-interval=-5s", "|9443|False|yaml|[]|-5"),
    ],
)
def test_accepted(line: str, expected: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert (result.exit_code, result.stdout.strip()) == (0, expected)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nonsense", "nonsense"),
        ("-nonsense=1", ""),
        ("--leader-elect=maybe", "needs true or false"),
        ("--interval 5", "is not a duration"),
        ("--webhook-port x", "webhook-port"),
        ("--kubeconfig", "kubeconfig"),
        ("positional", "positional"),
    ],
)
def test_refused_with_exit_2(line: str, said: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("text", "address"),
    [("", None), (":9095", ("", 9095)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80))],
)
def test_an_address_to_serve_on_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert bind_address("--there", text) == address


@pytest.mark.parametrize("text", ["9095", ":", ":x", ":65536", "host"])
def test_anything_else_is_no_address_and_the_flag_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"--there={text}"):
        bind_address("--there", text)
