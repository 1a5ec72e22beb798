"""Real tokenizers over small models that the tests make themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from inferencecache.server import inputs
from inferencecache.server.inputs import Inputs
from inferencecache.server.tokenizer import ModelTokenizers, TokenizerUnavailable, is_model_id, load
from inferencecache.wire.v1alpha1.inferencecache_pb2 import LookupRouteRequest

WORDS = ["<unk>", "<s>", "</s>", "<user>", "<assistant>", "hello", "world", "why", "0", "1", "undefined", "2026"]
ID = {word: number for number, word in enumerate(WORDS)}
CHAT = "{{ bos_token }} {% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
GENERATION = "{% if add_generation_prompt %}<assistant>{% endif %}"


def ids(*words: str) -> list[int]:
    return [ID[word] for word in words]


def make_model(folder: Path, *, chat_template: Any = None, config: Mapping[str, Any] | None = None) -> None:
    """A tokenizer of whole words that puts <s> before a text."""
    tokenizer = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", ID["<s>"])])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **(config or {})}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def chat(tokenizers: ModelTokenizers, *contents: str, model: str = "m", generation: bool = True) -> Sequence[int]:
    messages = [{"role": "user", "content": content} for content in contents]
    return tokenizers.encode_chat(model, messages, add_generation_prompt=generation)


def test_text_gets_the_special_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    make_model(tmp_path / "m")
    assert load(tmp_path).encode_text("m", "hello world") == ids("<s>", "hello", "world")


def test_a_conversation_gets_those_of_its_template_only(tmp_path: Path) -> None:
    make_model(tmp_path / "m", chat_template=CHAT + GENERATION)
    tokenizers = load(tmp_path)
    assert chat(tokenizers, "hello", "why") == ids("<s>", "<user>", "hello", "<user>", "why", "<assistant>")
    assert chat(tokenizers, "hello", generation=False) == ids("<s>", "<user>", "hello")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if tools is defined %}0{% else %}undefined{% endif %}", ["undefined"]),
        ("{% if documents is defined %}0{% else %}undefined{% endif %}", ["undefined"]),
        ("{{ eos_token }}", ["</s>"]),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}1{% endfor %}0", ["0"]),
        ("{{ strftime_now('%Y') }}", ["2026"]),
        ("{{ ['why'] | tojson | replace('[', '') | replace(']', '') | replace('\"', '') }}", ["why"]),
        ("  {% if true %}\nhello\n  {% endif %}\nworld", ["hello", "world"]),
    ],
)
def test_templates_find_what_their_authors_expect(tmp_path: Path, template: str, words: list[str]) -> None:
    make_model(tmp_path / "m", chat_template=template)
    assert chat(load(tmp_path, now=lambda: datetime(2026, 11, 30)), "hello") == ids(*words)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.unknown.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_or_leaves_its_sandbox_gives_no_ids(tmp_path: Path, template: str) -> None:
    make_model(tmp_path / "m", chat_template=template)
    with pytest.raises(TokenizerUnavailable, match="chat template of m failed"):
        chat(load(tmp_path), "hello")


def test_a_model_without_a_template_encodes_text_only(tmp_path: Path) -> None:
    make_model(tmp_path / "m")
    tokenizers = load(tmp_path)
    with pytest.raises(TokenizerUnavailable, match="no chat template"):
        chat(tokenizers, "hello")
    assert tokenizers.encode_text("m", "hello")


def test_a_template_file_goes_before_the_setting(tmp_path: Path) -> None:
    make_model(tmp_path / "m", chat_template="0")
    (tmp_path / "m" / "chat_template.jinja").write_text("1")
    assert chat(load(tmp_path), "hello") == ids("1")


def test_of_several_named_templates_the_default_counts(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "0"}, {"name": "default", "template": "1"}]
    make_model(tmp_path / "m", chat_template=named)
    assert chat(load(tmp_path), "hello") == ids("1")


def test_nothing_is_cut_off_or_stretched(tmp_path: Path) -> None:
    make_model(tmp_path / "m")
    path = str(tmp_path / "m" / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_truncation(max_length=2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(path)
    assert load(tmp_path).encode_text("m", "hello world why") == ids("<s>", "hello", "world", "why")


def test_text_with_a_nul_character_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path / "m")
    with pytest.raises(TokenizerUnavailable, match="NUL"):
        load(tmp_path).encode_text("m", "hello\0world")


def test_models_are_called_by_their_path_and_what_lies_inside_one_is_its_own(tmp_path: Path) -> None:
    make_model(tmp_path / "org" / "model")
    make_model(tmp_path / "org" / "model" / "original")
    make_model(tmp_path / "flat")
    make_model(tmp_path / ".hidden" / "m")
    (tmp_path / "empty").mkdir()
    assert load(tmp_path).models == ["flat", "org/model"]


def test_the_directory_itself_is_no_model(tmp_path: Path) -> None:
    make_model(tmp_path / "root")
    make_model(tmp_path / "root" / "m")
    assert load(tmp_path / "root").models == ["m"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    make_model(tmp_path / "store" / "m")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "linked").symlink_to(tmp_path / "store" / "m")
    (tmp_path / "models" / "loop").symlink_to(tmp_path / "models")
    assert load(tmp_path / "models").models == ["linked"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told_and_left_out(tmp_path: Path, name: str, content: str) -> None:
    make_model(tmp_path / "good")
    make_model(tmp_path / "bad")
    (tmp_path / "bad" / name).write_text(content)
    with capture_logs() as logs:
        assert load(tmp_path).models == ["good"]
    assert [line["model"] for line in logs if line["event"] == "tokenizer_not_loaded"] == ["bad"]


def test_a_tiktoken_file_alone_is_told_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "qwen.tiktoken").write_text("IQ== 0\n")
    with capture_logs() as logs:
        assert load(tmp_path).models == []
    assert "does not say how text is split" in logs[0]["error"]


@pytest.mark.parametrize("model", ["m", "org/model", "a/b/c", "Qwen2.5-0.5B", "..m", "a..b"])
def test_ids_are_normal_relative_paths(model: str) -> None:
    assert is_model_id(model)


@pytest.mark.parametrize(
    "model", ["", "/m", "a\\b", "C:/m", "c:m", "a//b", "./m", "../m", "a/../b", "a/.", "m/", "//host/share"]
)
def test_other_ids_are_refused_even_if_a_model_were_there(tmp_path: Path, model: str) -> None:
    assert not is_model_id(model)
    with pytest.raises(TokenizerUnavailable, match="no tokenizer"):
        ModelTokenizers({model: None}).encode_text(model, "hello")  # type: ignore[dict-item]


def test_an_unknown_model_has_no_ids(tmp_path: Path) -> None:
    make_model(tmp_path / "m")
    with pytest.raises(TokenizerUnavailable, match="'other'"):
        chat(load(tmp_path), "hello", model="other")


def test_many_threads_get_the_same_ids(tmp_path: Path) -> None:
    make_model(tmp_path / "m", chat_template=CHAT + GENERATION)
    tokenizers = load(tmp_path)
    wanted = chat(tokenizers, "hello world " * 50)
    answers: list[Sequence[int]] = []
    threads = [
        threading.Thread(target=lambda: answers.extend(chat(tokenizers, "hello world " * 50) for _ in range(50)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [wanted] * 400


def test_a_lookup_by_prompt_asks_for_the_blocks_of_the_conversation(tmp_path: Path) -> None:
    make_model(tmp_path / "m", chat_template=CHAT + GENERATION)
    request = LookupRouteRequest(model_id="m", prompt_text="hello world")
    job = inputs.resolve(request, (), chain_matching=True, block_size=2, tokenizer=load(tmp_path))
    assert callable(job)
    resolved = job()
    assert isinstance(resolved, Inputs)
    assert resolved.echo == ids("<s>", "<user>", "hello", "world", "<assistant>")
    assert resolved.counts == [2, 2]
