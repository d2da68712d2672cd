"""Llama's config.json: values, absences, RoPE recipes, and the tensors that a file must hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fuel_core
from fuel_core import LanguageModel
from fuel_core.config import RopeOptions
from fuel_core.errors import CapacityError, CheckpointError, ConfigError, FuelWarning
from fuel_core.plans import AttentionPlan, KVSlots, MaskPlan, ModelPlan
from fuel_core.rotary import RopeTable
from fuel_core.testing import Case
from fuel_core.testing.checks import ORACLE_ABSOLUTE, gap
from fuel_core.testing.oracle import TransformersOracle
from fuel_llama.llama import LLAMA, LlamaConfig, plan

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 2e4,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "attention_bias": True,
    "mlp_bias": True,
}
"""Not one value is a default, so that a default cannot pass for a value that was read."""

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DYNAMIC = {"type": "dynamic", "factor": 2.0}


def planned(options: RopeOptions | None = None, **changes: Any) -> ModelPlan:
    """The plan of BASE with changes; ``...`` takes a key away."""
    raw = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return plan(LlamaConfig.read(raw, source="here/config.json")[0], options or RopeOptions())


def table(model: ModelPlan) -> torch.Tensor:
    recipe = model.rope.variant(0)
    assert recipe is not None
    return recipe.inverse_frequencies()[0]


class TestValues:
    def test_each_value_of_the_file_arrives(self) -> None:
        model = planned()
        assert (model.vocab_size, model.hidden_size, model.max_positions) == (96, 64, 2048)
        assert (model.norm.kind, model.norm.eps, model.tied) == ("rms", 1e-5, True)
        assert len(model.layers) == 3
        assert model.layers[2].mixer == AttentionPlan(
            query_heads=4, kv_heads=2, head_dim=16, scale=0.25, qkv_bias=True, out_bias=True
        )
        assert str(model.layers[2].feed_forward) == "gated mlp 144, gelu, biased"
        assert model.mask == MaskPlan.dense(3)
        assert model.cache.layers == (KVSlots(2, 16),) * 3
        assert [model.rope.variant(layer).base for layer in range(3)] == [2e4] * 3
        assert (model.embed_scale, model.head_bias, model.notes) == (None, False, ())

    def test_absent_keys(self) -> None:
        optional = ("num_key_value_heads", "rms_norm_eps", "rope_theta", "hidden_act")
        flags = ("tie_word_embeddings", "attention_bias", "mlp_bias")
        model = planned(**dict.fromkeys((*optional, *flags), ...))
        mixer, mlp = model.layers[0].mixer, model.layers[0].feed_forward
        assert (mixer.kv_heads, mixer.head_dim, mixer.qkv_bias, mixer.out_bias) == (4, 16, False, False)
        assert (str(mlp), model.norm.eps, model.tied) == ("gated mlp 144, silu", 1e-6, False)
        assert (model.rope.variant(0).base, model.notes) == (1e4, ())

    def test_null_heads_are_absent_heads(self) -> None:
        absent = planned(num_key_value_heads=..., head_dim=...)
        assert planned(num_key_value_heads=None, head_dim=None) == absent

    def test_one_key_value_head_stays_one(self) -> None:
        assert planned(num_key_value_heads=1).layers[0].mixer.kv_heads == 1

    @pytest.mark.parametrize(
        "keys",
        [
            {"rope_interleaved": False, "is_llama_config": True},
            {"max_sequence_length": 2048, "pretraining_tp": 1},
            {"transformers.js_config": {"dtype": "q4"}},
        ],
        ids=["SmolLM2", "Llama 1", "SmolLM2 Instruct"],
    )
    def test_what_published_files_add_changes_nothing(self, keys: dict[str, Any]) -> None:
        assert planned(**keys) == planned()

    def test_linear_scaling_reaches_the_stated_length(self) -> None:
        """Vicuna-16k states the length before the stretch, and beside it the one that it is for."""
        linear = {"rope_scaling": {"type": "linear", "factor": 4.0}}
        assert planned(**linear).position_limit == 2048
        assert planned(**linear, max_sequence_length=8192).position_limit == 8192
        beyond = planned(**linear, max_sequence_length=8193)
        assert beyond.position_limit == 2048
        (note,) = beyond.notes
        assert "max_sequence_length (8193) is passed over" in note
        assert planned(max_sequence_length=4096).position_limit == 2048

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"rope_interleaved": True}, "rope_interleaved"),
            ({"pretraining_tp": 2}, "pretraining_tp"),
            ({"attention_bias": None}, "attention_bias is None"),
            ({"sliding_window": 4096}, "sliding_window"),
            ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) is no multiple"),
            ({"hidden_size": 66}, r"hidden_size \(66\)"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_what_would_run_wrongly_names_its_key(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            planned(**changes)


class TestRope:
    def test_llama3_of_llama_3_1(self) -> None:
        """The block was read, and the unscaled table returned: short prompts looked fine, and beyond
        29,000 tokens the text was gibberish."""
        heads: dict[str, Any] = {"rope_theta": 500_000.0, "head_dim": 128}
        scaled, plain = table(planned(**heads, rope_scaling=LLAMA3)), table(planned(**heads))
        assert torch.equal(scaled[:29], plain[:29])
        assert torch.equal(scaled[35:], plain[35:] / 8)
        assert ((scaled[29:35] < plain[29:35]) & (scaled[29:35] > plain[29:35] / 8)).all()
        chosen = {int(i): float(scaled[i]) for i in (29, 31, 34, 35, 63)}
        assert chosen == pytest.approx(
            {
                29: 0.00216657076,
                31: 0.000856751413,
                34: 0.000178507813,
                35: 9.55621235e-05,
                63: 3.06892599e-07,
            },
            rel=1e-5,
        )

    @pytest.mark.parametrize("position", [257, 4095, 15_962, 131_071])
    def test_tables_are_float32_in_a_bfloat16_model(self, position: int) -> None:
        """With inverse frequencies, positions or angles in bfloat16 257 is 256 and 15,962 is 15,936. A
        model-wide cast after construction must not reach the table either."""
        raw = {**LLAMA.tiny["plain"], "head_dim": 128, "rope_theta": 1e4, "max_position_embeddings": 2**17}
        case = Case.build(LLAMA, "plain", dtype=torch.bfloat16, raw=raw)
        (rope,) = case.decoder.to(torch.bfloat16).tables.ropes
        assert isinstance(rope, RopeTable)
        rows = rope.rows(torch.tensor([[position]]), torch.tensor([0]))
        exponents = torch.arange(0, 128, 2).float() / 128
        angles = torch.tensor(float(position)) * (1.0 / 1e4**exponents)
        assert rows.cos.dtype is torch.float32
        assert gap(rows.cos.flatten(), angles.cos()) <= 1e-5
        assert gap(rows.sin.flatten(), angles.sin()) <= 1e-5
        if position == 4095:
            assert float(rows.cos.flatten()[0]) == pytest.approx(-0.0659760, abs=1e-5)

    def test_dynamic_is_plain_within_the_trained_length_and_ends_there(self) -> None:
        """At 1,000 tokens the base is the trained one, and it is not another after a longer sequence."""
        model = planned(rope_theta=1e4, head_dim=128, rope_scaling=DYNAMIC)
        assert torch.equal(table(model), table(planned(rope_theta=1e4, head_dim=128)))
        assert model.position_limit == 2048
        (note,) = model.notes
        for part in ("rope_scaling is dynamic", "2048 tokens", "refused", "dynamic_ntk=frozen"):
            assert part in note

    def test_dynamic_frozen_is_one_base_for_every_length(self) -> None:
        """The base that 4,096 tokens would give, twice the 2,048 that it was trained on."""
        frozen = RopeOptions(dynamic_ntk="frozen")
        model = planned(frozen, rope_theta=1e4, head_dim=128, rope_scaling=DYNAMIC)
        wanted = table(planned(rope_theta=30_527.7367, head_dim=128))
        torch.testing.assert_close(table(model), wanted, rtol=1e-6, atol=0)
        assert model.position_limit == 4096
        assert "frozen at the base of 4096 tokens" in model.notes[0]

    def test_a_stretched_context_is_where_it_freezes(self) -> None:
        """Where the file states both lengths, its context and not the factor says how far it goes."""
        recipe = {**DYNAMIC, "original_max_position_embeddings": 2048}
        frozen = RopeOptions(dynamic_ntk="frozen")
        model = planned(
            frozen, rope_theta=1e4, head_dim=128, max_position_embeddings=8192, rope_scaling=recipe
        )
        wanted = table(planned(rope_theta=72_195.8601, head_dim=128))
        torch.testing.assert_close(table(model), wanted, rtol=1e-6, atol=0)
        assert model.position_limit == 8192

    def test_the_option_changes_nothing_else(self) -> None:
        frozen = RopeOptions(dynamic_ntk="frozen")
        assert planned(frozen, rope_scaling=LLAMA3) == planned(rope_scaling=LLAMA3)
        assert planned(frozen) == planned()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A biased checkpoint as it is published."""
    Case.build(LLAMA, "biased-head-dim", dtype=torch.float32).save(tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    raw = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not ...}))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def logits(model: LanguageModel) -> torch.Tensor:
    return model.forward([list(range(40))])[0]


class TestTensors:
    def test_every_projection_has_its_bias(self, folder: Path) -> None:
        """The output's bias, or the MLP's, was dropped in silence: each of them moves the logits."""
        wanted = TransformersOracle(folder).logits(list(range(40)))
        assert gap(logits(fuel_core.load(folder)), wanted) <= ORACLE_ABSOLUTE
        biases = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        for name in biases:
            stored = tensors(folder)
            for tensor in [tensor for tensor in stored if tensor.endswith(f"{name}.bias")]:
                stored[tensor].zero_()
            other = folder / name
            other.mkdir()
            save_file(stored, other / "model.safetensors")
            (other / "config.json").write_text((folder / "config.json").read_text())
            assert gap(logits(fuel_core.load(other)), wanted) > ORACLE_ABSOLUTE, name

    @pytest.mark.parametrize(
        ("key", "named"),
        [("attention_bias", "self_attn.q_proj.bias"), ("mlp_bias", "mlp.down_proj.bias")],
    )
    def test_a_bias_that_the_config_does_not_state_is_refused(
        self, folder: Path, key: str, named: str
    ) -> None:
        """An unused bias is a wrong model, not a tensor to pass over."""
        rewrite(folder, **{key: ...})
        with pytest.raises(CheckpointError) as caught:
            fuel_core.load(folder)
        assert f"model.layers.0.{named}" in str(caught.value)
        assert "have no use" in str(caught.value)

    def test_a_bias_that_is_not_stored_is_refused(self, folder: Path) -> None:
        stored = tensors(folder)
        del stored["model.layers.1.self_attn.o_proj.bias"]
        save_file(stored, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.o_proj\.bias"):
            fuel_core.load(folder)

    def test_stored_inverse_frequencies_are_passed_over(self, folder: Path) -> None:
        """Older files store tables that the config states already; fuel makes its own."""
        wanted = logits(fuel_core.load(folder))
        stored = tensors(folder)
        extra = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(6) for layer in range(3)}
        save_file({**stored, **extra, "rope.freqs": torch.ones(6)}, folder / "model.safetensors")
        assert torch.equal(logits(fuel_core.load(folder)), wanted)

    def test_names_without_the_prefix(self, folder: Path) -> None:
        wanted = logits(fuel_core.load(folder))
        bare = {name.removeprefix("model."): tensor for name, tensor in tensors(folder).items()}
        save_file(bare, folder / "model.safetensors")
        assert torch.equal(logits(fuel_core.load(folder)), wanted)

    def test_names_with_another_prefix_are_refused(self, folder: Path) -> None:
        """The whole model stayed random, with a warning."""
        outer = {f"outer.{name}": tensor for name, tensor in tensors(folder).items()}
        save_file(outer, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match="outer"):
            fuel_core.load(folder)


class TestTiedHead:
    """Llama's heads are its own unless the file says otherwise."""

    def test_an_absent_key_means_a_head_of_its_own(self, folder: Path) -> None:
        rewrite(folder, tie_word_embeddings=...)
        model = fuel_core.load(folder)
        assert model.decoder.head is not None

    def test_an_absent_head_is_refused(self, folder: Path) -> None:
        """Tied in silence although the config says untied."""
        stored = tensors(folder)
        del stored["lm_head.weight"]
        save_file(stored, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"lm_head\.weight.* tie_word_embeddings"):
            fuel_core.load(folder)
        rewrite(folder, tie_word_embeddings=True)
        tied = fuel_core.load(folder)
        assert tied.decoder.head is None

    def test_an_equal_head_is_shared(self, folder: Path) -> None:
        rewrite(folder, tie_word_embeddings=True)
        stored = tensors(folder)
        save_file(
            {**stored, "lm_head.weight": stored["model.embed_tokens.weight"].clone()},
            folder / "model.safetensors",
        )
        assert fuel_core.load(folder).decoder.head is None

    def test_a_head_that_differs_is_kept_and_said(self, folder: Path) -> None:
        wanted = logits(fuel_core.load(folder))
        rewrite(folder, tie_word_embeddings=True)
        with pytest.warns(FuelWarning, match="differs from"):
            model = fuel_core.load(folder)
        assert torch.equal(logits(model), wanted)

    def test_a_head_alone_serves_both(self, folder: Path) -> None:
        rewrite(folder, tie_word_embeddings=True)
        stored = tensors(folder)
        del stored["model.embed_tokens.weight"]
        save_file(stored, folder / "model.safetensors")
        model = fuel_core.load(folder)
        assert torch.equal(model.decoder.embed.weight, stored["lm_head.weight"])
        assert model.decoder.head is None


class TestDynamicModel:
    @pytest.fixture
    def dynamic(self, folder: Path) -> Path:
        """Trained for 32 tokens."""
        rewrite(folder, rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=32)
        return folder

    def test_beyond_the_trained_length_is_refused_before_anything_runs(self, dynamic: Path) -> None:
        with pytest.warns(FuelWarning, match="dynamic_ntk=frozen"):
            model = fuel_core.load(dynamic)
        short, long = list(range(32)), list(range(33))
        wanted = TransformersOracle(dynamic).logits(short)
        assert gap(model.forward([short])[0], wanted) <= ORACLE_ABSOLUTE
        with pytest.raises(CapacityError, match="32"):
            model.forward([long])
        assert gap(model.forward([short])[0], wanted) <= ORACLE_ABSOLUTE

    def test_frozen_it_is_the_published_table_of_the_longest_sequence(self, dynamic: Path) -> None:
        """The one length at which a fresh transformers model and a frozen base agree."""
        with pytest.warns(FuelWarning, match="frozen at the base of 64 tokens"):
            model = fuel_core.load(dynamic, options={"dynamic_ntk": "frozen"})
        tokens = list(range(64))
        wanted = TransformersOracle(dynamic).logits(tokens)
        assert gap(model.forward([tokens])[0], wanted) <= ORACLE_ABSOLUTE
        session = model.session(64)
        session.prefill(tokens[:10])
        for position in range(10, 64):
            step = session.step([[tokens[position]]])[0]
            assert gap(step, wanted[position]) <= ORACLE_ABSOLUTE, position
        with pytest.raises(CapacityError, match="64"):
            model.forward([list(range(65))])
