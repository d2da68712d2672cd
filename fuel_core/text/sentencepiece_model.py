"""A sentencepiece ``tokenizer.model`` as a tokenizer of the tokenizers library.

Needs the extra ``fuel-core[sentencepiece]``. Checkpoints that have a tokenizer.json do not need it.

Source: sentencepiece's model format (``sentencepiece_model.proto``, 0.2) and its two algorithms, BPE by
the scores of the merged pieces and Unigram.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, processors

from fuel_core.errors import TokenizerError

SENTENCEPIECE_FILE = "tokenizer.model"
_SPACE = "▁"


def read_sentencepiece(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Read a sentencepiece model.

    Args:
        path: the model file.
        config: the content of tokenizer_config.json: ``add_bos_token`` (absent: true where the model has
            a BOS), ``add_eos_token`` (absent: false) and ``added_tokens_decoder``.

    Raises:
        TokenizerError: the file is damaged or of a kind that is not read, the extra is not installed,
            or an added token would not have the id that tokenizer_config.json gives it.
    """
    model = _parse(path)
    backend = tokenizers.Tokenizer(_algorithm(model, path))
    backend.normalizer = _normalizer(model.normalizer_spec)
    stages: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.normalizer_spec.add_dummy_prefix:
        stages.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(stages)
    piece = type(model).SentencePiece
    for entry in model.pieces:
        token = tokenizers.AddedToken(entry.piece, normalized=False, special=entry.type == piece.CONTROL)
        if entry.type == piece.CONTROL:
            backend.add_special_tokens([token])
        elif entry.type == piece.USER_DEFINED:
            backend.add_tokens([token])
    _add_tokens(backend, config, path)
    _surround(backend, model.trainer_spec, config)
    return backend


def _parse(path: Path) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise TokenizerError(
            f"{path.parent} has no tokenizer.json; its {path.name} is read with the extra "
            "`pip install fuel-core[sentencepiece]`"
        ) from error
    proto: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    model = proto.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:  # an OSError, or whatever protobuf raises for what it cannot parse
        raise TokenizerError(f"{path} cannot be read: {error}; incomplete or corrupt download?") from error
    if not model.pieces:
        raise TokenizerError(f"{path} holds no pieces; incomplete or corrupt download?")
    return model


def _algorithm(model: Any, path: Path) -> models.Model:
    trainer = model.trainer_spec
    if trainer.treat_whitespace_as_suffix:
        raise TokenizerError(
            f"{path} writes spaces as suffixes, which is not read; convert it to tokenizer.json"
        )
    scores = [(entry.piece, entry.score) for entry in model.pieces]
    if trainer.model_type == trainer.UNIGRAM:
        return models.Unigram(scores, unk_id=trainer.unk_id, byte_fallback=trainer.byte_fallback)
    if trainer.model_type != trainer.BPE:
        raise TokenizerError(
            f"{path} is of the sentencepiece kind {trainer.model_type}; BPE and Unigram are read: convert it "
            "to tokenizer.json"
        )
    vocab = {text: number for number, (text, _) in enumerate(scores)}
    return models.BPE(
        vocab=vocab,
        merges=_merges(model, vocab),
        unk_token=scores[trainer.unk_id][0],
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
    )


def _merges(model: Any, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others; the best piece first, as sentencepiece merges."""
    found = []
    for entry in model.pieces:
        if entry.type != type(entry).NORMAL:
            continue
        text = entry.piece
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        known = [(a, b) for a, b in halves if a in vocab and b in vocab]
        known.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found += [(entry.score, pair) for pair in known]
    found.sort(key=lambda merge: -merge[0])  # stable: equal scores keep the order of the vocabulary
    return [pair for _, pair in found]


def _normalizer(spec: Any) -> normalizers.Normalizer:
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    steps.append(normalizers.Replace(" ", _SPACE))
    return normalizers.Sequence(steps)


def _add_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path) -> None:
    """Add what tokenizer_config.json adds, in the order of the ids that it states."""
    stated = config.get("added_tokens_decoder") or {}
    for text_id, token in sorted(stated.items(), key=lambda item: int(item[0])):
        added = tokenizers.AddedToken(
            token["content"],
            special=bool(token.get("special")),
            normalized=bool(token.get("normalized")),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
            single_word=bool(token.get("single_word")),
        )
        (backend.add_special_tokens if added.special else backend.add_tokens)([added])
        found = backend.token_to_id(added.content)
        if found != int(text_id):
            raise TokenizerError(
                f"tokenizer_config.json gives {added.content!r} the id {text_id}, but beside {path} it has "
                f"{found}; the files belong to different tokenizers"
            )


def _surround(backend: tokenizers.Tokenizer, trainer: Any, config: Mapping[str, Any]) -> None:
    """Put BOS and EOS around a text, as tokenizer_config.json asks."""
    wanted = {
        "bos": (trainer.bos_id, config.get("add_bos_token", True)),
        "eos": (trainer.eos_id, config.get("add_eos_token", False)),
    }
    used = {
        name: (backend.id_to_token(number), number)
        for name, (number, asked) in wanted.items()
        if asked and number >= 0
    }
    if used:
        begin, end = ([used[name][0]] if name in used else [] for name in ("bos", "eos"))
        backend.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end], special_tokens=list(used.values())
        )
