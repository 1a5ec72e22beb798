"""Prompts to token ids as the engines see them, from the files that models ship with (spec 06 §9).

All models are loaded once, from one directory, when the server starts; nothing is ever fetched. Every folder below it
with a `tokenizer.json` is a model, called by its path. A request names a model, and the name is only ever looked up
among those that were loaded.

A conversation is put into the model's chat template the way serving engines do it: special tokens come from the
template and are not added again, and `tools` and `documents` are undefined, which templates tell from empty. Templates
are code, so they run in a sandbox. Plain text gets the special tokens that the tokenizer itself adds.

Needs the extra `tokenizer`; importing this module without it raises ImportError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple

import structlog
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_TOKENIZER: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_CHAT_TEMPLATE: Final = "chat_template.jinja"
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_log = structlog.get_logger(__name__)


class TokenizerUnavailable(Exception):
    """There are no token ids for this request; the caller goes on without."""


class _Model(NamedTuple):
    tokenizer: Tokenizer
    chat_template: Template | None
    special_tokens: Mapping[str, str]


class ModelTokenizers:
    """The tokenizers of all loaded models. Thread-safe."""

    def __init__(self, models: Mapping[str, _Model]) -> None:
        self._models = models

    @property
    def models(self) -> list[str]:
        """The ids of the loaded models, in ascending order."""
        return sorted(self._models)

    def encode_chat(
        self, model: str, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
    ) -> Sequence[int]:
        """The ids of a conversation in the model's chat template.

        Raises:
            TokenizerUnavailable: unknown model, no chat template, or one that does not take these messages.
        """
        known = self._known(model)
        if known.chat_template is None:
            raise TokenizerUnavailable(f"model {model} has no chat template")
        try:
            text = known.chat_template.render(
                **known.special_tokens, messages=messages, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:
            raise TokenizerUnavailable(f"the chat template of {model} failed: {error}") from error
        return _encode(known.tokenizer, text, special_tokens=False)

    def encode_text(self, model: str, text: str) -> Sequence[int]:
        """The ids of a text as it is, with the special tokens that the tokenizer adds.

        Raises:
            TokenizerUnavailable: unknown model, or the text has a NUL character.
        """
        if "\0" in text:
            raise TokenizerUnavailable("the text has a NUL character")
        return _encode(self._known(model).tokenizer, text, special_tokens=True)

    def _known(self, model: str) -> _Model:
        known = self._models.get(model) if is_model_id(model) else None
        if known is None:
            raise TokenizerUnavailable(f"no tokenizer was loaded for model {model!r}")
        return known


def is_model_id(model: str) -> bool:
    """Whether `model` could be the id of a model: a normal relative path with slashes."""
    return (
        bool(model)
        and "\\" not in model
        and not PureWindowsPath(model).drive
        and not model.startswith("/")
        and all(part not in ("", ".", "..") for part in model.split("/"))
    )


def load(directory: Path, *, now: Callable[[], datetime] = datetime.now) -> ModelTokenizers:
    """Load every model below `directory`. One that cannot be loaded is logged and left out.

    Args:
        directory: its sub-folders are looked at, not itself; symbolic links are followed.
        now: the clock of templates that put the date into a prompt.
    """
    models: dict[str, _Model] = {}
    for folder in _model_folders(directory):
        model = PurePosixPath(folder.relative_to(directory)).as_posix()
        try:
            models[model] = _load_model(folder, now)
        except Exception as error:
            _log.warning("tokenizer_not_loaded", model=model, error=str(error))
    _log.info("tokenizers_loaded", models=sorted(models))
    return ModelTokenizers(models)


def _model_folders(directory: Path) -> Iterator[Path]:
    """The folders with a model, in order. What lies inside one belongs to it; hidden folders are not looked at."""
    seen = {directory.resolve()}
    for path, folders, files in os.walk(directory, followlinks=True):
        folder = Path(path)
        if folder != directory and (_TOKENIZER in files or any(name.endswith(".tiktoken") for name in files)):
            folders.clear()
            yield folder
            continue
        wanted = []
        for name in sorted(folders):
            target = (folder / name).resolve()
            if not name.startswith(".") and target not in seen:
                seen.add(target)
                wanted.append(name)
        folders[:] = wanted


def _load_model(folder: Path, now: Callable[[], datetime]) -> _Model:
    if not (folder / _TOKENIZER).exists():
        raise ValueError(f"it has no {_TOKENIZER}; a *.tiktoken file alone does not say how text is split")
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    # What a training run left there would cut or stretch prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = json.loads((folder / _CONFIG).read_text()) if (folder / _CONFIG).exists() else {}
    source = _chat_template(folder, config)
    return _Model(
        tokenizer=tokenizer,
        chat_template=None if source is None else _environment(now).from_string(source),
        special_tokens={name: text for name in _SPECIAL_TOKENS if (text := _content(config.get(name))) is not None},
    )


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own goes before the setting; of several named templates, `default` is the one for conversations."""
    if (folder / _CHAT_TEMPLATE).exists():
        return (folder / _CHAT_TEMPLATE).read_text()
    setting = config.get("chat_template")
    if isinstance(setting, list):
        setting = {each["name"]: each["template"] for each in setting}.get("default")
    return setting


def _content(token: Any) -> str | None:
    """A special token is its text, or an object that has it."""
    return token.get("content") if isinstance(token, dict) else token


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Jinja as model authors expect it: what they test their templates with trims blocks and has these names."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **_options: Any) -> str:
    """Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _encode(tokenizer: Tokenizer, text: str, *, special_tokens: bool) -> Sequence[int]:
    ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=special_tokens).ids
    return ids
