"""What a loaded model offers: forward passes of every form, variants, generation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fuel_core
from fuel_core import LanguageModel
from fuel_core.errors import CapacityError, GeometryError, RequestError, TokenizerError
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.settings import GenerationSettings

IDS = [[3, 1, 4, 1, 5, 9, 2, 6]]


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> LanguageModel:
    return fuel_core.load(checkpoint("mixed-window"), dtype="float64")


def test_a_model_is_shown_in_one_line(model: LanguageModel) -> None:
    """repr() printed the whole decoder, config and ledger: a screen for each mention in a notebook."""
    parameters = sum(parameter.numel() for parameter in model.decoder.parameters())
    assert repr(model) == (
        f"<LanguageModel qwen2 from {str(model.folder)!r}: {parameters:,} parameters, float64, cpu>"
    )


class TestForward:
    def test_all_positions_and_the_last(self, model: LanguageModel) -> None:
        logits = model.forward(IDS)
        assert logits.shape == (1, 8, 96)
        assert logits.isfinite().all()
        torch.testing.assert_close(model.forward(IDS, last_only=True), logits[:, -1], atol=1e-12, rtol=0)

    def test_embeddings_equal_tokens(self, model: LanguageModel) -> None:
        embeddings = model.embed(IDS)
        assert embeddings.shape == (1, 8, 48)
        assert torch.equal(model.forward(embeddings=embeddings), model.forward(IDS))
        assert torch.equal(model.hidden_states(embeddings=embeddings), model.hidden_states(IDS))

    def test_hidden_states_are_what_the_head_reads(self, model: LanguageModel) -> None:
        hidden = model.hidden_states(IDS)
        assert hidden.shape == (1, 8, 48)
        assert model.decoder.head is not None
        torch.testing.assert_close(hidden @ model.decoder.head.weight.T, model.forward(IDS))

    def test_start_pos_moves_every_position_alike(self, model: LanguageModel) -> None:
        """Rotations are relative: a shift of all positions changes nothing but rounding. That it
        reaches the tables at all shows at a limit."""
        shifted = model.forward(IDS, start_pos=50)
        torch.testing.assert_close(shifted, model.forward(IDS), atol=1e-4, rtol=0)
        assert not torch.equal(shifted, model.forward(IDS))
        model.forward(IDS, start_pos=248)
        with pytest.raises(CapacityError, match=r"positions 249\.\.256 .* 256"):
            model.forward(IDS, start_pos=249)

    def test_a_bidirectional_mask_replaces_every_layers_own(self, model: LanguageModel) -> None:
        everything = torch.ones(8, 8, dtype=torch.bool)
        both_ways = model.hidden_states(IDS, mask=everything)
        assert both_ways.isfinite().all()
        assert (both_ways - model.hidden_states(IDS)).abs().max() > 1e-2
        added = torch.zeros(1, 8, 8, dtype=torch.float64)
        torch.testing.assert_close(model.hidden_states(IDS, mask=added), both_ways, atol=1e-10, rtol=0)

    def test_padding_by_mask_leaves_the_other_tokens_alone(self, model: LanguageModel) -> None:
        """Left padding: the padded row's real tokens are as the same prompt alone, and no pad is NaN."""
        padded = [[0, 0, 0, *IDS[0][:5]], IDS[0]]
        causal = torch.ones(8, 8, dtype=torch.bool).tril()
        pads = causal.clone()
        pads[:, :3] = False
        logits = model.forward(padded, mask=torch.stack((pads, causal)))
        assert logits.isfinite().all()
        dense = model.forward([IDS[0][:5]], mask=causal[:5, :5])
        torch.testing.assert_close(logits[0, 3:], dense[0], atol=1e-4, rtol=0)

    def test_gradients_reach_embeddings_and_weights(self, model: LanguageModel) -> None:
        embeddings = model.embed(IDS).requires_grad_()
        model.decoder.requires_grad_(True)
        model.forward(embeddings=embeddings).square().sum().backward()
        assert embeddings.grad is not None
        assert (embeddings.grad.abs().sum(-1) > 0).all()

    @pytest.mark.parametrize(
        ("shape", "named"),
        [((1, 4, 47), r"\[1, 4, 47\].*48"), ((4, 48), r"\[4, 48\]"), ((1, 0, 48), "0, 48")],
    )
    def test_embeddings_of_another_shape_are_refused(
        self, model: LanguageModel, shape: tuple[int, ...], named: str
    ) -> None:
        """A width that keeps the number of elements passed a reshape and gave noise."""
        model.forward(embeddings=torch.zeros(1, 4, 48, dtype=torch.float64))
        with pytest.raises(GeometryError, match=named):
            model.forward(embeddings=torch.zeros(shape, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("ids", "named"),
        [([[]], "with a token"), ([[1, 96]], "96 .*vocabulary of 96"), ([[-2]], "-2"), ([1, 2], r"\[2\]")],
    )
    def test_ids_that_are_none_are_refused(self, model: LanguageModel, ids: object, named: str) -> None:
        with pytest.raises(RequestError, match=named):
            model.forward(ids)  # type: ignore[arg-type]

    def test_numbers_of_another_kind_are_refused(self, model: LanguageModel) -> None:
        """Token 1.7 ran as token 1, and integer embeddings ended in an error of torch."""
        with pytest.raises(RequestError, match="float32; whole numbers"):
            model.forward([[1.7]])  # type: ignore[list-item]
        for dtype in (torch.int64, torch.float32):
            with pytest.raises(GeometryError, match=r"activations are torch.float64"):
                model.forward(embeddings=torch.zeros(1, 4, 48, dtype=dtype))

    def test_ragged_ids_and_two_inputs_are_refused(self, model: LanguageModel) -> None:
        with pytest.raises(RequestError, match=r"no .batch, tokens. array"):
            model.forward([[1, 2], [3]])
        with pytest.raises(RequestError, match="either"):
            model.forward(IDS, embeddings=model.embed(IDS))
        with pytest.raises(RequestError, match="either"):
            model.forward()

    @pytest.mark.parametrize("shape", [(7, 8), (8, 7), (2, 8, 8), (1, 1, 8, 8)])
    def test_masks_of_another_shape_are_refused(self, model: LanguageModel, shape: tuple[int, ...]) -> None:
        with pytest.raises(GeometryError, match=r"\[8, 8\] or \[1, 8, 8\]"):
            model.forward(IDS, mask=torch.ones(shape, dtype=torch.bool))
        with pytest.raises(GeometryError, match="int64"):
            model.forward(IDS, mask=torch.ones(8, 8, dtype=torch.int64))


class TestOptions:
    def test_window_layers_first_and_last(self, checkpoint: Callable[..., Path]) -> None:
        folder = checkpoint(use_sliding_window=True, sliding_window=4, max_window_layers=1)
        with pytest.warns(fuel_core.FuelWarning, match="layers 0 slide; transformers would let 1-3"):
            model = fuel_core.load(folder, dtype="float64")
        last = model.with_options(window_layers="last")
        assert [model.plan.mask.window(layer) for layer in range(4)] == [4, None, None, None]
        assert [last.plan.mask.window(layer) for layer in range(4)] == [None, 4, 4, 4]
        assert (model.forward(IDS) - last.forward(IDS)).abs().max() > 1e-3
        assert last.decoder.embed.weight is model.decoder.embed.weight

    def test_two_spellings_of_no_window_are_one_model(self, checkpoint: Callable[..., Path]) -> None:
        """Windows switched off, and windows switched on for the first 0 layers."""
        off = fuel_core.load(checkpoint(use_sliding_window=False, sliding_window=3))
        with pytest.warns(fuel_core.FuelWarning, match="none slide"):
            none = fuel_core.load(checkpoint(use_sliding_window=True, sliding_window=3, max_window_layers=0))
        assert torch.equal(off.forward(IDS), none.forward(IDS))

    def test_an_unknown_option_names_the_known(self, model: LanguageModel) -> None:
        with pytest.raises(RequestError, match="no option windows; it has dynamic_ntk, window_layers"):
            model.with_options(windows=1)

    @pytest.mark.parametrize("options", ["foo", ["foo"], 3], ids=str)
    def test_options_are_a_mapping(self, checkpoint: Callable[..., Path], options: Any) -> None:
        """The letters of a text were taken for options: "no option f, o"."""
        with pytest.raises(RequestError, match=r"options is .*; a mapping"):
            fuel_core.load(checkpoint(), options=options)


class TestSession:
    def test_a_requested_capacity_is_honoured(self, model: LanguageModel) -> None:
        assert model.session(100).pool.capacity == 100
        assert model.session().pool.capacity == 256
        with pytest.raises(CapacityError, match="257 tokens exceeds the 256"):
            model.session(257)

    @pytest.mark.parametrize("asked", [("8",), (8.0,), (8, "2"), (True,), (8, None)], ids=str)
    def test_sizes_are_whole_numbers(self, model: LanguageModel, asked: Any) -> None:
        """They ended in a TypeError of a comparison."""
        with pytest.raises(RequestError, match="whole numbers are expected"):
            model.session(*asked)


class TestGenerate:
    def test_planned_once(self, model: LanguageModel) -> None:
        completion = model.generate([1, 2, 3], max_tokens=20, strict=True)
        assert len(completion.token_ids) == 20
        assert completion.finish_reason == "length"
        assert completion.counters.plans == 1
        assert completion.counters.replays == 19

    def test_greedy_is_the_most_probable_continuation(self, model: LanguageModel) -> None:
        tokens = [1, 2, 3]
        for token in model.generate([1, 2, 3], max_tokens=12).token_ids:
            assert token == int(model.forward([tokens], last_only=True)[0].argmax())
            tokens.append(token)

    def test_a_seed_repeats_and_differs_from_another(self, model: LanguageModel) -> None:
        def run(seed: int) -> tuple[int, ...]:
            settings = GenerationSettings(max_tokens=24, sampling=Sampling(temperature=2.0, seed=seed))
            return model.generate([1, 2, 3], settings).token_ids

        assert run(7) == run(7)
        assert run(7) != run(8)

    def test_the_stream_is_the_text(self, model: LanguageModel) -> None:
        stream = model.stream("Hello", max_tokens=16)
        text = "".join(stream)
        assert stream.completion is not None
        assert stream.completion.text == text
        assert text == model.tokenizer.decode(stream.completion.token_ids)
        assert stream.completion.prompt_token_ids == tuple(model.tokenizer.encode("Hello"))

    def test_stops_at_any_of_the_stop_tokens_and_leaves_it_out_of_the_text(
        self, checkpoint: Callable[..., Path]
    ) -> None:
        """The stop set is the union of what config, generation config and tokenizer name."""
        folder = checkpoint()
        free = fuel_core.load(folder, dtype="float64").generate([1, 2, 3], max_tokens=20)
        stop = free.token_ids[5]
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": [90, {stop}]}}')
        model = fuel_core.load(folder, dtype="float64")
        assert model.stop_token_ids == {90, stop, 95}
        stopped = model.generate([1, 2, 3], max_tokens=20)
        first = free.token_ids.index(stop)
        assert stopped.token_ids == free.token_ids[: first + 1]
        assert stopped.finish_reason == "stop"
        assert stopped.text == model.tokenizer.decode(free.token_ids[:first])

    def test_ids_run_without_a_tokenizer(self, checkpoint: Callable[..., Path]) -> None:
        """A folder of config.json and weights could not generate at all, though ids need no text."""
        folder = checkpoint()
        wanted = fuel_core.load(folder).generate([1, 2, 3], max_tokens=6).token_ids
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        model = fuel_core.load(folder)
        with pytest.warns(fuel_core.FuelWarning, match="no tokenizer.* text .* is empty"):
            completion = model.generate([1, 2, 3], max_tokens=6)
        assert (completion.token_ids, completion.text) == (wanted, "")
        assert list(model.stream([1, 2, 3], max_tokens=6)) == []
        with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
            model.generate("Hello", max_tokens=6)
        with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
            model.generate([1, 2, 3], GenerationSettings(stop=["x"]))

    def test_a_tokenizer_that_is_there_in_part_is_an_error_for_ids_too(
        self, checkpoint: Callable[..., Path]
    ) -> None:
        """Its end tokens would be missed in silence."""
        folder = checkpoint()
        (folder / "tokenizer.json").unlink()
        with pytest.raises(TokenizerError, match="incomplete download"):
            fuel_core.load(folder).generate([1, 2, 3], max_tokens=6)

    def test_prompt_and_new_tokens_share_the_positions(self, model: LanguageModel) -> None:
        """The limit is prompt + max_tokens <= positions, in the library as on the command line."""
        assert len(model.generate([1] * 250, max_tokens=6).token_ids) == 6
        with pytest.raises(CapacityError, match=r"250 tokens and 7 new ones exceed the 256"):
            model.generate([1] * 250, max_tokens=7)
        assert len(model.generate([1] * 250).token_ids) == 6, "by default, what the context leaves"

    def test_an_empty_prompt_is_refused(self, model: LanguageModel) -> None:
        for prompt in ("", []):
            with pytest.raises(RequestError, match="prompt is empty"):
                model.generate(prompt)
        with pytest.raises(RequestError, match="max_tokens is 0"):
            model.generate("a", max_tokens=0)
