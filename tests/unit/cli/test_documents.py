"""Files are read as kubectl reads them, and every error says which document of which file it means."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from inferencecache.cli.documents import DocumentError, load
from inferencecache.cli.output import to_json, to_yaml, unified_diff

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
LIST = "apiVersion: v1\nkind: PodList\nitems:\n- {apiVersion: v1, kind: Pod}\n"


def test_documents_files_and_lists_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(f"---\n# only a comment\n---\n{POD}---\n{LIST}")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"apiVersion": "v1", "kind": "Service"}'))
    documents = load([str(tmp_path / "a.yaml"), "-"])
    assert [(d.kind, d.index) for d in documents] == [("Pod", 2), ("Pod", 3), ("Service", 1)]
    assert documents[0].where == f"{tmp_path / 'a.yaml'}, document 2 (Pod a)"
    assert documents[2].where == "standard input, document 1 (Service without a name)"


def test_a_character_that_json_writes_as_two_escapes_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"apiVersion": "v1", "kind": "Pod", "a": "\\ud83d\\ude00 \u00e4", "\\ud83d\\ude00": 1}'
    )
    manifest = load([str(tmp_path / "a.json")])[0].manifest
    assert (manifest["a"], manifest["\U0001f600"]) == ("\U0001f600 \u00e4", 1)
    assert "\U0001f600" in to_yaml(manifest)
    (tmp_path / "a.json").write_text('{"apiVersion": "v1", "kind": "Pod", "a": "\\ud83d"}')
    with pytest.raises(DocumentError, match="half a character"):
        load([str(tmp_path / "a.json")])


SCALARS: dict[str, Any] = {
    "yes": True, "on": True, "y": True, "N": False, "Off": False, "true": True, "tRue": "tRue", "~": None, "=": "=",
    "2026-01-02": "2026-01-02", "'1'": "1", "22:30": "22:30", "1.2.3": "1.2.3", "1Gi": "1Gi", "e3": "e3", "0x": "0x",
    "0x1F": 31, "0B1": 1, "0o17": 15, "0755": 493, "0_7": 7, "00": 0, "08": 8, "0888": 888, "-0b1": -1, "+5": 5,
    "1_000": 1000, "1.": 1, ".5": 0.5, "+.5": 0.5, "1_0.5": 10.5, "09.5": 9.5, "18446744073709551615": 2**64 - 1,
    "1e3": 1000, "1E-3": 0.001, "1.5e3": 1500, "1e21": 1e21, "12e4567": "12e4567", "0o8": "0o8",
}  # fmt: skip
"""Scalars, and what kubectl 1.32 takes them for."""


@pytest.mark.parametrize("written", SCALARS)
def test_scalars_mean_what_kubectl_takes_them_for(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{POD}spec:\n  a: {written}\n")
    read = load([str(tmp_path / "a.yaml")])[0].manifest["spec"]["a"]
    assert (read, type(read)) == (SCALARS[written], type(SCALARS[written]))


@pytest.mark.parametrize("text", [written for written, read in SCALARS.items() if written != "'1'" and written != read])
def test_a_text_is_written_so_that_kubectl_reads_a_text(text: str) -> None:
    assert to_yaml({"a": text}) == f"a: '{text}'\n"


def test_keys_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{POD}spec: {{on: a, 1: b, 0x10: c, 1.5: d, 'q': e}}\n")
    read = load([str(tmp_path / "a.yaml")])[0].manifest["spec"]
    assert read == {"true": "a", "1": "b", "16": "c", "1.5": "d", "q": "e"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "document 1: not valid YAML"),
        (f"{POD}---\na: [", "document 2: not valid YAML"),
        ("a: 1\na: 2", "key 'a' is given twice"),
        ("- 1", "is a list, not a Kubernetes object"),
        ("kind: Pod", "has no apiVersion"),
        ("apiVersion: v1\nkind: 3", "has no kind"),
        ("apiVersion: v1\nkind: Pod\nmetadata: x", "metadata is not an object"),
        ("!!python/object:os.system {}", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
        ("? [a]\n: b", "not valid YAML"),
        ("~: a", "a key is empty"),
        ("a: .inf", "no number that JSON has"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(DocumentError, match=r"bad\.yaml") as caught:
        load([str(tmp_path / "bad.yaml")])
    assert said in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent", tmp_path / "binary", tmp_path):
        with pytest.raises(DocumentError, match="cannot be read"):
            load([str(path)])
    with pytest.raises(DocumentError, match="only once"):
        load(["-", "-"])


def test_output_is_readable() -> None:
    assert to_yaml({"b": "x\ny\n", "a": ["yes", "1"]}) == "b: |\n  x\n  y\na:\n- 'yes'\n- '1'\n"
    assert to_json([{"a": 1}]).startswith('{\n  "a"')
    assert '"kind": "List"' in to_json([{}, {}])
    assert unified_diff({"a": 1}, {"a": 1}, "x") == ""
    assert "+a: 2" in unified_diff({"a": 1}, {"a": 2}, "x")
    assert unified_diff(None, {"a": 2}, "x").startswith("--- /dev/null")
