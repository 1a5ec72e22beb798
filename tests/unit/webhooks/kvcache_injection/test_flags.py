"""Which flag an engine reads in a word."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencecache.webhooks.kvcache_injection.engines import SGLANG, VLLM
from inferencecache.webhooks.kvcache_injection.expansion import LONGEST, expand, literal_variables, literally
from inferencecache.webhooks.kvcache_injection.flags import flag_read, value_of

CONNECTOR, DTYPE, STORAGE = "--kv-transfer-config", "--kv-cache-dtype", "--hicache-storage-backend"


@pytest.mark.parametrize(
    ("word", "loosely", "strictly"),
    [
        ("--kv-cache-dtype", DTYPE, DTYPE),
        ("--kv-cache-dtype=fp8", DTYPE, DTYPE),
        ("--kv-cache-d", DTYPE, DTYPE),
        ("--kv-c=auto", DTYPE, DTYPE),
        ("--kv_cache_dtype", DTYPE, None),
        ("--kv_cache-d=fp8", DTYPE, None),
        ("--kv-cache-dtype-skip-layers", None, None),
        ("--kv-cache-dtype-skip-layers=1", None, None),
        ("--kv_cache_dtype_skip_layers", None, None),
        ("--KV-CACHE-DTYPE", None, None),
        ("-kv-cache-dtype", None, None),
        ("kv-cache-dtype", None, None),
        ("--", None, None),
        ("-", None, None),
        ("", None, None),
    ],
)
def test_the_dtype_is_read_as_each_engine_reads_it(word: str, loosely: str | None, strictly: str | None) -> None:
    assert flag_read(word, VLLM.known_flags, loosely=True) == loosely
    assert flag_read(word, SGLANG.known_flags, loosely=False) == strictly


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("--kv-transfer-config", CONNECTOR),
        ("--kv_transfer_config={}", CONNECTOR),
        ("--kv-transfer-config.kv_role", CONNECTOR),
        ("--kv_transfer_config.kv_connector=X", CONNECTOR),
        ("--kv-tr.kv_role=kv_both", CONNECTOR),
        ("--kv-transfer-config.extra.list+", CONNECTOR),
        ("--kv", None),  # of the connector, the dtype and more: argparse refuses it
        ("--kv-transfer-configs", None),
        ("--kv-events-config", None),
    ],
)
def test_vllm_reads_the_connector_shortened_underscored_and_dotted(word: str, read: str | None) -> None:
    assert flag_read(word, VLLM.known_flags, loosely=True) == read


@pytest.mark.parametrize(
    ("word", "read"),
    [
        (STORAGE, STORAGE),
        (f"{STORAGE}=file", STORAGE),
        (f"{STORAGE}-extra-config", f"{STORAGE}-extra-config"),
        (f"{STORAGE}-ex", f"{STORAGE}-extra-config"),
        ("--hicache-storage-b", None),  # of both
        (f"{STORAGE}.x", None),
        ("--hicache-ratio", None),
        ("--enable-hier", "--enable-hierarchical-cache"),
    ],
)
def test_sglang_reads_flags_shortened_but_otherwise_literally(word: str, read: str | None) -> None:
    assert flag_read(word, SGLANG.known_flags, loosely=False) == read


@given(flag=st.sampled_from(SGLANG.known_flags), length=st.integers(3, 50), value=st.sampled_from(["", "=v"]))
def test_shortened_flags_are_read_as_argparse_reads_them(flag: str, length: int, value: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for index, known in enumerate(SGLANG.known_flags):
        parser.add_argument(known, dest=str(index), nargs="?", const="given")
    word = flag[:length] + value
    try:
        parsed = vars(parser.parse_args([word]))
    except (argparse.ArgumentError, SystemExit):
        read = None
    else:
        read = next((SGLANG.known_flags[int(index)] for index, found in parsed.items() if found), None)
    assert flag_read(word, SGLANG.known_flags, loosely=False) == read


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--kv-cache-dtype", "fp8"], "fp8"),
        (["--kv-cache-dtype=a", "--kv-c", "b"], "b"),
        (["--kv-cache-dtype"], ""),
        (["--other", "fp8"], None),
    ],
)
def test_the_last_value_of_a_flag_counts(words: list[str], value: str | None) -> None:
    assert value_of(words, DTYPE, SGLANG.known_flags, loosely=False) == value


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("$(A)", "one"),
        ("x$(A)y$(B)", "xoneyone and two"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(SECRET)", "$(SECRET)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(word: str, expanded: str) -> None:
    env = [
        {"name": "A", "value": "one"},
        {"name": "B", "value": "$(A) and two"},
        {"name": "SECRET", "value": "shadowed"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    assert expand([word], literal_variables(env)) == [expanded]


@given(word=st.text(st.sampled_from("$()Ab"), max_size=12))
def test_a_word_written_literally_comes_out_as_it_is(word: str) -> None:
    assert expand([literally(word)], {"A": "no", "b": "no"}) == [word]


def test_what_would_be_longer_than_a_program_can_be_given_stays_as_it_is_written() -> None:
    doubled = [{"name": "A", "value": "x"}, *({"name": "A", "value": "$(A)$(A)"} for _ in range(60))]
    assert sum(map(len, literal_variables(doubled).values())) <= LONGEST
    known = literal_variables([{"name": "A", "value": "x" * 1000}, {"name": "B", "value": "$(A)" * 10_000}])
    assert known.keys() == {"A"}
    words = expand(["$(A)"] * 10_000, known)
    assert set(words) == {"x" * 1000, "$(A)"}
    assert words == sorted(words, reverse=True)
    assert sum(map(len, words)) < LONGEST + len("$(A)") * 10_000
    assert expand(["$(" * 10_000], known) == ["$(" * 10_000]
