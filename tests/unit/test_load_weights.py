"""From checkpoint files to parameters: strict accounting, heads, dtypes, names."""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fuel_core
from fuel_core.errors import CheckpointError, FuelWarning, PlanError, RequestError
from fuel_core.registry import Registry
from fuel_core.testing import Case
from fuel_core.weights.checkpoint import Checkpoint
from fuel_core.weights.load import load_weights

Edit = Callable[[dict[str, Tensor]], object]
HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def edit(folder: Path, change: Edit) -> Path:
    """Change the tensors of a checkpoint in place."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def set_config(folder: Path, **changes: object) -> Path:
    raw = {**json.loads((folder / "config.json").read_text()), **changes}
    raw = {key: value for key, value in raw.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


IDS = [[1, 5, 9, 2, 40]]


class TestHead:
    """Every combination of what the config says of tying and what is stored."""

    def test_tied_without_a_head(self, checkpoint: Callable[..., Path]) -> None:
        model = fuel_core.load(checkpoint("tied"))
        assert model.decoder.head is None

    def test_tied_with_an_equal_head(self, checkpoint: Callable[..., Path]) -> None:
        folder = edit(checkpoint("tied"), lambda t: t.update({HEAD: t[EMBED].clone()}))
        model = fuel_core.load(folder)
        assert model.decoder.head is None

    def test_tied_with_another_head(self, checkpoint: Callable[..., Path]) -> None:
        """Silently dropping either tensor gives fluent, wrong text; the stored head is used, and said so."""
        folder = edit(checkpoint("tied"), lambda t: t.update({HEAD: -t[EMBED]}))
        with pytest.warns(FuelWarning, match="lm_head.weight differs from model.embed_tokens.weight"):
            model = fuel_core.load(folder)
        tied = fuel_core.load(checkpoint("tied"))
        torch.testing.assert_close(model.forward(IDS), -tied.forward(IDS), atol=0, rtol=0)

    def test_tied_with_a_head_of_another_dtype(self, checkpoint: Callable[..., Path]) -> None:
        """It cannot be compared bit by bit; it counts as another head, and is no error of torch."""
        folder = edit(checkpoint("tied"), lambda t: t.update({HEAD: t[EMBED].to(torch.float16)}))
        with pytest.warns(FuelWarning, match="lm_head.weight differs"):
            assert fuel_core.load(folder).decoder.head is not None

    def test_untied_with_a_head(self, checkpoint: Callable[..., Path]) -> None:
        model = fuel_core.load(checkpoint("dense"))
        assert model.decoder.head is not None
        assert model.decoder.head.weight.data_ptr() != model.decoder.embed.weight.data_ptr()

    def test_untied_without_a_head(self, checkpoint: Callable[..., Path]) -> None:
        """Engines tied it in silence, or started with a random head."""
        folder = edit(checkpoint("dense"), lambda t: t.pop(HEAD))
        with pytest.raises(CheckpointError, match=r"no lm_head.weight.*tie_word_embeddings"):
            fuel_core.load(folder)

    def test_key_absent_means_untied(self, checkpoint: Callable[..., Path]) -> None:
        model = fuel_core.load(set_config(checkpoint("dense"), tie_word_embeddings="absent"))
        assert model.decoder.head is not None

    def test_tied_with_the_head_alone(self, checkpoint: Callable[..., Path]) -> None:
        wanted = fuel_core.load(checkpoint("tied")).forward(IDS)
        folder = edit(checkpoint("tied"), lambda t: t.update({HEAD: t.pop(EMBED)}))
        torch.testing.assert_close(fuel_core.load(folder).forward(IDS), wanted, atol=0, rtol=0)


class TestAccounting:
    """Every parameter is filled from the file, every tensor is used or excused by name."""

    def test_a_missing_tensor_is_named(self, checkpoint: Callable[..., Path]) -> None:
        name = "model.layers.2.mlp.up_proj.weight"
        folder = edit(checkpoint(), lambda t: t.pop(name))
        with pytest.raises(CheckpointError, match=f"1 parameters have no tensor:\n *{name}"):
            fuel_core.load(folder)

    def test_a_misspelt_tensor_is_named_twice(self, checkpoint: Callable[..., Path]) -> None:
        right, wrong = "model.layers.1.input_layernorm.weight", "model.layers.1.input_norm.weight"
        folder = edit(checkpoint(), lambda t: t.update({wrong: t.pop(right)}))
        with pytest.raises(CheckpointError) as caught:
            fuel_core.load(folder)
        assert right in str(caught.value)
        assert wrong in str(caught.value)

    def test_an_unused_bias_is_an_error(self, checkpoint: Callable[..., Path]) -> None:
        """A bias that is dropped in silence turns text to mojibake. Qwen2 has none on o."""
        folder = edit(
            checkpoint(), lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": torch.ones(48)})
        )
        with pytest.raises(CheckpointError, match=r"no use:\n *model.layers.0.self_attn.o_proj.bias"):
            fuel_core.load(folder)

    def test_biases_need_no_key(self, checkpoint: Callable[..., Path]) -> None:
        """Qwen2's q, k and v biases are part of the family, though config.json never says so."""
        folder = checkpoint()
        with_biases = fuel_core.load(folder).forward(IDS)
        edit(folder, lambda t: [value.zero_() for name, value in t.items() if name.endswith("bias")])
        assert (fuel_core.load(folder).forward(IDS) - with_biases).abs().max() > 1e-2

    def test_old_rotary_tables_are_excused(self, checkpoint: Callable[..., Path]) -> None:
        folder = edit(
            checkpoint(), lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
        )
        fuel_core.load(folder)

    def test_names_without_the_outer_prefix(self, checkpoint: Callable[..., Path]) -> None:
        folder = checkpoint()
        wanted = fuel_core.load(folder).forward(IDS)
        edit(folder, lambda t: [t.update({k.removeprefix("model."): t.pop(k)}) for k in list(t)])
        torch.testing.assert_close(fuel_core.load(folder).forward(IDS), wanted, atol=0, rtol=0)

    def test_a_foreign_prefix_is_an_error(self, checkpoint: Callable[..., Path]) -> None:
        """With a warning only, a library ran a wholly random model."""
        folder = edit(checkpoint(), lambda t: [t.update({f"net.{k}": t.pop(k)}) for k in list(t)])
        with pytest.raises(CheckpointError, match="and 43 more"):
            fuel_core.load(folder)

    def test_a_wrong_shape_names_both(self, checkpoint: Callable[..., Path]) -> None:
        name = "model.layers.0.self_attn.k_proj.weight"
        folder = edit(checkpoint(), lambda t: t.update({name: torch.zeros(17, 48)}))
        with pytest.raises(CheckpointError, match=r"k_proj.weight of shape \[17, 48\].*\[16, 48\]"):
            fuel_core.load(folder)

    def test_integers_are_no_weights(self, checkpoint: Callable[..., Path]) -> None:
        name = "model.layers.0.self_attn.k_proj.weight"
        folder = edit(checkpoint(), lambda t: t.update({name: torch.zeros(16, 48, dtype=torch.int8)}))
        with pytest.raises(CheckpointError, match="int8, a quantised form"):
            fuel_core.load(folder)


class TestDtype:
    """One rule: the user's choice, else the config's, else what is stored; the cache follows."""

    @pytest.mark.parametrize(
        "keys",
        [
            {"torch_dtype": "bfloat16"},
            {"dtype": "bfloat16", "torch_dtype": "absent"},
            {"torch_dtype": "torch.bfloat16"},
            {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
            {"torch_dtype": "absent"},
        ],
    )
    def test_spellings_agree(self, checkpoint: Callable[..., Path], keys: dict[str, str]) -> None:
        folder = set_config(checkpoint(dtype=torch.bfloat16), **keys)
        model = fuel_core.load(folder)
        assert model.plan.numerics.weights is torch.bfloat16
        assert model.plan.numerics.cache is torch.bfloat16
        assert model.decoder.embed.weight.dtype is torch.bfloat16
        assert model.cache_pool(rows=1).layers[0].tensors[0].dtype is torch.bfloat16
        session = model.session(16)
        session.prefill([1, 2, 3])
        assert session.step([[4]]).dtype is torch.float32

    def test_norms_and_biases_stay_wide(self, checkpoint: Callable[..., Path]) -> None:
        decoder = fuel_core.load(checkpoint(dtype=torch.bfloat16)).decoder
        narrow = {n for n, p in decoder.named_parameters() if p.dtype is torch.bfloat16}
        assert narrow == {n for n, p in decoder.named_parameters() if p.dim() > 1}

    def test_the_users_choice_wins_and_the_cache_follows(self, checkpoint: Callable[..., Path]) -> None:
        model = fuel_core.load(checkpoint(dtype=torch.bfloat16), dtype="float32")
        assert {model.plan.numerics.weights, model.plan.numerics.cache} == {torch.float32}
        session = model.session(16)
        found = session.prefill(IDS[0], all_positions=True)
        torch.testing.assert_close(found, model.forward(IDS)[0], atol=1e-4, rtol=0)

    def test_a_cache_dtype_of_its_own(self, checkpoint: Callable[..., Path]) -> None:
        model = fuel_core.load(checkpoint(), cache_dtype="bfloat16")
        session = model.session(16)
        found = session.prefill(IDS[0], all_positions=True)
        assert session.pool.dtype is torch.bfloat16
        assert 0 < (found - model.forward(IDS)[0]).abs().max() < 0.5

    def test_activations_on_a_cpu_without_bfloat16(
        self, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Weights stay as stored, so that memory does not double; only activations are wide."""
        folder = checkpoint(dtype=torch.bfloat16)
        for units, activations in (({}, torch.float32), ({"avx512_bf16": True}, torch.bfloat16)):
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda units=units: units)
            model = fuel_core.load(folder)
            assert model.plan.numerics.activations is activations
            assert model.decoder.embed.weight.dtype is torch.bfloat16
            assert model.embed(IDS).dtype is activations
            wanted = fuel_core.load(folder, dtype="float32").forward(IDS)
            assert (model.forward(IDS) - wanted).abs().max() < (0.2 if units else 1e-3)

    def test_an_unknown_name_is_refused(self, checkpoint: Callable[..., Path]) -> None:
        for argument in ("dtype", "cache_dtype"):
            with pytest.raises(RequestError, match="dtype int3 is unknown; known are float64"):
                fuel_core.load(checkpoint(), **{argument: "int3"})
        with pytest.raises(fuel_core.FuelError, match="dtype is 'bf17'"):
            fuel_core.load(set_config(checkpoint(), dtype="bf17", torch_dtype="absent"))


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"rope_type": "magic"}},
        {"rope_scaling": {"rope_type": "yarn"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
        {"hidden_size": 48, "head_dim": 7},
    ],
    ids=str,
)
def test_an_error_of_the_plan_names_its_file(
    checkpoint: Callable[..., Path], keys: dict[str, object]
) -> None:
    """Errors of the keys of RoPE, which are read as the plan is made, named no file as those of others do."""
    folder = set_config(checkpoint(), **keys)
    with pytest.raises(fuel_core.FuelError) as caught:
        fuel_core.load(folder)
    assert str(caught.value).startswith(f"{folder / 'config.json'}: ")


def test_shards_in_any_split_load_alike(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """The parts of one fused parameter may lie in several files."""
    whole = checkpoint("mixed-window")
    wanted = fuel_core.load(whole).forward(IDS)
    tensors = load_file(whole / "model.safetensors")
    (whole / "model.safetensors").unlink()
    index = {}
    for shard in range(3):
        file = f"model-{shard + 1:05}-of-00003.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[shard::3]}
        save_file(part, whole / file)
        index |= dict.fromkeys(part, file)
    (whole / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    torch.testing.assert_close(fuel_core.load(whole).forward(IDS), wanted, atol=0, rtol=0)


def test_saving_what_was_loaded_gives_the_same_files(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """The rules that fuse tensors at load take them apart again."""
    folder = checkpoint("mixed-window")
    fuel_core.load(folder).save(tmp_path / "again")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "qwen2"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_saved_generates(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Only config.json and weights were written: the folder loaded, and knew neither text nor its end."""
    folder = checkpoint("mixed-window")
    (folder / "generation_config.json").write_text('{"eos_token_id": [95, 3]}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    companions = files(folder)
    for code in ("modeling_toy.py", "pytorch_model.bin", "model-00001-of-00002.safetensors.old"):
        (folder / code).write_text("never copied")
    model = fuel_core.load(folder, dtype="float32")
    model.save(tmp_path / "again")
    written = files(tmp_path / "again")
    assert written.keys() == companions.keys()
    same = companions.keys() - {"config.json", "model.safetensors"}
    assert {name: written[name] for name in same} == {name: companions[name] for name in same}
    again = fuel_core.load(tmp_path / "again")
    assert again.stop_token_ids == {95, 3}
    assert again.generate("Hello", max_tokens=5).text == model.generate("Hello", max_tokens=5).text
    assert again.chat([{"role": "user", "content": "Hi"}], max_tokens=2).text is not None


def test_files_of_the_hubs_cache_are_copied_and_not_their_links(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder, blob = checkpoint(), tmp_path / "blob"
    (folder / "tokenizer.json").rename(blob)
    (folder / "tokenizer.json").symlink_to(blob)
    fuel_core.load(folder).save(tmp_path / "again")
    assert not (tmp_path / "again" / "tokenizer.json").is_symlink()
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == blob.read_bytes()


def test_a_model_may_be_saved_where_it_came_from(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    before, model = files(folder), fuel_core.load(folder)
    wanted = model.forward(IDS)
    model.save(folder)
    after = files(folder)
    assert after.keys() == before.keys()
    assert after["tokenizer.json"] == before["tokenizer.json"]
    assert torch.equal(fuel_core.load(folder).forward(IDS), wanted)


def test_what_another_model_has_left_is_warned_of(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """A chat template of the folder's last model would be taken for this one's."""
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "chat_template.jinja").write_text("of another model")
    (tmp_path / "again" / "tokenizer.json").write_text("of another model")
    folder = checkpoint()
    with pytest.warns(FuelWarning, match=r"again holds chat_template\.jinja, which") as warned:
        fuel_core.load(folder).save(tmp_path / "again")
    assert warned[0].filename == __file__
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_a_folder_that_is_gone_is_said_after_the_weights_are_safe(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = checkpoint()
    model = fuel_core.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="no tokenizer"):
        model.save(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").is_file()


def test_a_checkpoint_is_stored_under_the_published_names(checkpoint: Callable[..., Path]) -> None:
    """Qwen2's: biases on q, k and v, none on o; every tool that reads its checkpoints knows these."""
    parts = [
        *("input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight"),
        *(f"self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")),
        *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    ]
    layers = {f"model.layers.{layer}.{part}" for layer in range(4) for part in parts}
    stored = load_file(checkpoint() / "model.safetensors").keys()
    assert stored == layers | {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def test_refused_keys_that_are_allowed_are_still_named(checkpoint: Callable[..., Path]) -> None:
    folder = set_config(checkpoint(), rotary_mystery=3)
    with pytest.raises(fuel_core.FuelError, match=r"rotary_mystery.*\n.*allow_unknown_keys=True"):
        fuel_core.load(folder)
    with pytest.warns(FuelWarning, match="rotary_mystery is passed over"):
        fuel_core.load(folder, allow_unknown_keys=True)


def test_notes_of_the_plan_are_warnings(checkpoint: Callable[..., Path]) -> None:
    folder = set_config(checkpoint(), rope_theta="absent")
    with pytest.warns(
        FuelWarning, match=r"rope_theta is absent: 1e\+06 is used \(transformers would take 1e4"
    ):
        fuel_core.load(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FuelWarning)
        ours, theirs = (
            fuel_core.load(folder, options=options).forward(IDS)
            for options in (None, {"absent_rope_theta": 1e4})
        )
    assert (ours - theirs).abs().max() > 1e-3


def test_saved_files_have_the_rights_of_new_files(checkpoint: Callable[..., Path]) -> None:
    """Weights that only their owner may read make a wheel that only root can use."""
    folder = checkpoint()
    beside = folder / "new"
    beside.touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {beside.stat().st_mode}


def test_progress_counts_the_stored_bytes(checkpoint: Callable[..., Path]) -> None:
    told: list[tuple[str, int, int]] = []
    folder = checkpoint()
    fuel_core.load(folder, progress=lambda *report: told.append(report))
    total = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert told[0] == ("loading", 0, total)
    assert told[-1] == ("loading", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_a_saved_dtype_keeps_the_key_of_the_file(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Both keys, with different values, are a file that cannot be loaded."""
    folder = set_config(checkpoint(), dtype="float32", torch_dtype="absent")
    fuel_core.load(folder, dtype="bfloat16").save(tmp_path / "again")
    raw = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (raw["dtype"], "torch_dtype" in raw) == ("bfloat16", False)
    assert fuel_core.load(tmp_path / "again").plan.numerics.weights is torch.bfloat16


def test_options_are_not_lost_by_saving(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """config.json has no place for them, so that the saved model would be another one."""
    model = fuel_core.load(checkpoint(), options={"window_layers": "last"})
    with pytest.raises(RequestError, match=r"window_layers='last'.*would be lost"):
        model.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_file_without_tensors_is_refused(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    save_file({}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors holds no tensor"):
        fuel_core.load(folder)


def test_a_tensor_for_two_parameters_is_the_familys_fault(checkpoint: Callable[..., Path]) -> None:
    """The second filling took the place of the first, and a parameter stayed without a value."""
    folder = checkpoint()
    registry = Registry.discover()
    family = registry.family("qwen2")
    modules = dict(family.weights.modules)
    modules["layers.{layer}.feed_forward_norm"] = modules["layers.{layer}.mixer_norm"]
    decoder = Case.build(family, "dense").decoder
    names = replace(family.weights, modules=modules, excused=("*post_attention_layernorm*",))
    with pytest.raises(PlanError, match=r"input_layernorm.weight for both layers.0.mixer_norm.weight and"):
        load_weights(decoder, Checkpoint.open(folder), names, torch.device("cpu"))


@pytest.mark.parametrize("choice", [{"device": "warp"}, {"device": "cuda:7"}, {"dtype": 5}], ids=str)
def test_devices_and_dtypes_that_are_none(checkpoint: Callable[..., Path], choice: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        fuel_core.load(checkpoint(), **choice)  # type: ignore[arg-type]


def test_a_folder_without_a_config_is_mentioned_when_the_hub_has_no_such_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``a/b`` may be meant as a folder; an answer about the hub alone sends its owner the wrong way."""
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"folder models/mine, without a config\.json"):
        fuel_core.load("models/mine", local_files_only=True)
