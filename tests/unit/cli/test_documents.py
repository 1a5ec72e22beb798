"""Files are read as kubectl reads them, and every error says which document of which file it means."""

from __future__ import annotations

import io
from pathlib import Path

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


def test_scalars_mean_what_the_api_server_thinks(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{POD}spec: {{a: yes, b: true, c: 2026-01-02, d: '1', e: 0x10, f: on}}\n")
    assert load([str(tmp_path / "a.yaml")])[0].manifest["spec"] == {
        "a": "yes", "b": True, "c": "2026-01-02", "d": "1", "e": 16, "f": "on",
    }  # fmt: skip


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
