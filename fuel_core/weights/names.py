"""Which checkpoint tensors a parameter is made of, by a family's name templates."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from string import Formatter
from types import MappingProxyType

from torch import nn

from fuel_core.blocks.rules import Piece, WeightRule
from fuel_core.errors import PlanError

_LAYER = re.compile(r"\.(\d+)\.")

EXCUSED_EVERYWHERE = ("*rotary_emb.inv_freq", "rope.freqs")
"""Tensors that some checkpoints store and that the config states already."""


@dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The names of a family's tensors.

    Attributes:
        modules: block path -> tensor path, both without the final ``.weight`` or ``.bias``.
            ``{layer}`` stands for the layer's number; ``{part}`` for a part that the block names and
            ``{expert}`` for an expert's number, and a template without them says that the
            checkpoint stores the parts, or the experts, as one tensor.
        excused: shell patterns of tensors that a checkpoint may hold and no block uses. ``{further}``
            stands for the number of a layer that the config states beyond the model's own, as of
            those that predict further tokens.
        parts: what the published names call a part, where that is not what the block calls it.
    """

    modules: Mapping[str, str]
    excused: tuple[str, ...]
    parts: Mapping[str, str] = field(default_factory=dict)

    def excuses(self, tensor: str, further: range) -> bool:
        """Whether a tensor may lie unused in the checkpoint of a model with these further layers."""
        found = _LAYER.search(tensor)
        number = found.group(1) if found and int(found.group(1)) in further else "{further}"
        patterns = [pattern.replace("{further}", number) for pattern in self.excused]
        return any(fnmatchcase(tensor, pattern) for pattern in (*EXCUSED_EVERYWHERE, *patterns))


LLAMA_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "embed": "model.embed_tokens",
        "layers.{layer}.mixer_norm": "model.layers.{layer}.input_layernorm",
        "layers.{layer}.mixer.qkv": "model.layers.{layer}.self_attn.{part}_proj",
        "layers.{layer}.mixer.out": "model.layers.{layer}.self_attn.o_proj",
        "layers.{layer}.feed_forward_norm": "model.layers.{layer}.post_attention_layernorm",
        "layers.{layer}.feed_forward.gate_up": "model.layers.{layer}.mlp.{part}_proj",
        "layers.{layer}.feed_forward.down": "model.layers.{layer}.mlp.down_proj",
        "norm": "model.norm",
        "head": "lm_head",
    }
)
"""The names that most families share with Llama: ``{**LLAMA_NAMES, ...}`` adds or replaces some."""

_EXPERT = "model.layers.{layer}.mlp.experts.{expert}"

EXPERT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "layers.{layer}.feed_forward.router": "model.layers.{layer}.mlp.gate",
        "layers.{layer}.feed_forward.experts.gate_up": _EXPERT + ".{part}_proj",
        "layers.{layer}.feed_forward.experts.down": _EXPERT + ".down_proj",
    }
)
"""The names of routed experts that most families share; those of shared experts differ."""


@dataclass(frozen=True)
class Source:
    """One checkpoint tensor and the place it fills.

    Attributes:
        tensor: its name in the checkpoint.
        module, parameter: the module that owns the parameter, and the parameter's name there.
        path: the parameter's full path, for messages.
        rule: how the parameter is stored.
        piece: which of its entries this tensor is.
        shape: what the tensor must have.
    """

    tensor: str
    module: nn.Module
    parameter: str
    path: str
    rule: WeightRule
    piece: Piece
    shape: tuple[int, ...]


def sources(model: nn.Module, names: WeightNames) -> Iterator[Source]:
    """Yield the checkpoint tensors of every parameter of a model.

    Raises:
        PlanError: a parameter without a rule or a template; a fault of the family, not of a file.
    """
    for module_path, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        if not parameters:
            continue
        rules = module.weight_rules
        assert isinstance(rules, Mapping), f"{type(module).__name__} declares no weight rules"
        template, layer = _template(module_path, names.modules)
        placeholders = {field for _, field, _, _ in Formatter().parse(template) if field}
        for name, parameter in parameters.items():
            rule = rules[name]
            for piece in rule.pieces(placeholders):
                fields = {**piece.fields, "layer": layer}
                if "part" in fields:
                    fields["part"] = names.parts.get(fields["part"], fields["part"])
                tensor = f"{template.format_map(fields)}.{name}"
                shape = tuple(parameter[piece.place].shape)
                yield Source(tensor, module, name, f"{module_path}.{name}", rule, piece, shape)


def _template(module_path: str, modules: Mapping[str, str]) -> tuple[str, str]:
    found = _LAYER.search(f"{module_path}.")
    layer = found.group(1) if found else ""
    generic = _LAYER.sub(".{layer}.", f"{module_path}.", count=1).removesuffix(".")
    if generic not in modules:
        raise PlanError(
            f"the family names no checkpoint tensor for {generic}; its weights name {sorted(modules)}"
        )
    return modules[generic], layer
