"""tokenizer.model alone: the ids and texts that sentencepiece itself gives."""

import json
import random
import sys
from pathlib import Path

import pytest

from fuel_core.errors import TokenizerError
from fuel_core.text.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

WORDS = ["in", "the", "beginning", "God", "created", "heaven", "and", "earth,", "form;", "darkness"]
ODD = ["é", "世界", "👋", "  ", "\n", "\t", "ﬁ", "<s>", "<0x41>", "▁"]


def sentence(drawn: random.Random) -> str:
    return " ".join(drawn.choices(WORDS, k=drawn.randrange(1, 14)))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as Llama's is (BPE, text as it stands) or as T5's (Unigram, normalised text)."""
    folder = tmp_path_factory.mktemp(request.param)
    drawn = random.Random(0)
    (folder / "text.txt").write_text("\n".join(sentence(drawn) for _ in range(400)))
    llama_like = request.param == "bpe"
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=320,
        model_type=request.param,
        byte_fallback=True,
        normalization_rule_name="identity" if llama_like else "nmt_nfkc",
        remove_extra_whitespaces=not llama_like,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> "sentencepiece.SentencePieceProcessor":
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def test_encodes_and_decodes_as_sentencepiece(folder: Path, reference: object) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    drawn = random.Random(1)
    for number in range(500):
        text = sentence(drawn)
        if number % 2:
            place = drawn.randrange(len(text))
            odd = drawn.choice([word for word in ODD if not word.startswith("<")])
            text = text[:place] + odd + text[place:]
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text), text  # type: ignore[attr-defined]
        assert tokenizer.decode(ids) == reference.decode(ids), text  # type: ignore[attr-defined]


def test_a_stream_is_the_text(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("in the beginning 👋 世界", add_special_tokens=False)
    stream = tokenizer.detokenizer()
    pieces = [stream.push(token) for token in ids] + [stream.flush()]
    assert "".join(pieces) == "in the beginning 👋 世界"
    assert "�" not in "".join(pieces)


@pytest.mark.parametrize(
    ("config", "around"),
    [({}, ([1], [])), ({"add_bos_token": False}, ([], [])), ({"add_eos_token": True}, ([1], [2]))],
)
def test_begin_and_end_are_as_the_config_asks(
    folder: Path, config: dict[str, bool], around: tuple[list[int], list[int]]
) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(folder)
    bare = tokenizer.encode("the earth", add_special_tokens=False)
    assert tokenizer.encode("the earth") == [*around[0], *bare, *around[1]]
    assert tokenizer.decode(tokenizer.encode("the earth")) == "the earth"


def test_control_pieces_in_a_text_are_tokens_and_added_ones_follow(folder: Path) -> None:
    size = Tokenizer.from_folder(folder).vocab_size
    added = {str(size): {"content": "<|im_end|>", "special": True}}
    config = {"added_tokens_decoder": added, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("earth<|im_end|>", add_special_tokens=False)
    assert ids[-1] == size
    assert tokenizer.eos_token_ids == {size}
    assert tokenizer.decode(ids) == "earth"
    added[str(size + 5)] = added.pop(str(size))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match=f"the id {size + 5}, but .* has {size}"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer_config.json").unlink()


def test_the_special_tokens_map_names_the_end_where_the_config_does_not(folder: Path) -> None:
    path = folder / "special_tokens_map.json"
    path.write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert Tokenizer.from_folder(folder).eos_token_ids == {2}
    path.unlink()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for content in (b"", b"\xff\xff\xff\xff\xff"):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(TokenizerError, match=r"tokenizer\.model .*incomplete or corrupt download"):
            Tokenizer.from_folder(tmp_path)


def test_a_kind_that_is_not_read_is_named(folder: Path, tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "tokenizer.model").read_bytes())
    model.trainer_spec.model_type = model.trainer_spec.WORD
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    with pytest.raises(TokenizerError, match="BPE and Unigram are read"):
        Tokenizer.from_folder(tmp_path)


def test_the_extra_is_named_where_it_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(TokenizerError, match=r"pip install fuel-core\[sentencepiece\]"):
        Tokenizer.from_folder(folder)
