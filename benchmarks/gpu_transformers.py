"""The other side: transformers with its static cache, compiled, in the same greedy loop."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def importable() -> bool:
    return find_spec("transformers") is not None


class TransformersSide:
    """A model of a shape with random weights and a cache that holds a prompt.

    Tokens stay on the device: no choice is read on the host, while fuel reads each one. The cache is as short
    as the run allows, since every step reads all of it.

    Args:
        held: tokens in the cache at first.
        room: tokens that may follow.
        compiled: by ``torch.compile(mode="reduce-overhead")``, which captures CUDA graphs.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        device: torch.device,
        dtype: torch.dtype,
        *,
        held: int,
        room: int,
        compiled: bool = True,
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

        keys = {key: value for key, value in raw.items() if key != "model_type"}
        config = AutoConfig.for_model(raw["model_type"], **keys)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        self._model = model.requires_grad_(False).eval()
        self._cache = StaticCache(config=config, max_cache_len=held + room)
        self._step = torch.compile(self._model, mode="reduce-overhead") if compiled else self._model
        self._token = torch.ones(1, 1, dtype=torch.int64, device=device)
        self._left, self._compiled = room, compiled
        with torch.no_grad():
            prompt = torch.ones(1, held, dtype=torch.int64, device=device)
            self._model(prompt, past_key_values=self._cache, use_cache=True)

    @torch.no_grad()
    def run(self, tokens: int) -> Tensor:
        """Decode greedily; returns the last token, on the device."""
        assert tokens <= self._left, f"{tokens} tokens asked for, the cache has room for {self._left}"
        self._left -= tokens
        for _ in range(tokens):
            if self._compiled:
                torch.compiler.cudagraph_mark_step_begin()  # the last step's logits may be overwritten
            logits = self._step(self._token, past_key_values=self._cache, use_cache=True).logits
            self._token = logits[:, -1].argmax(-1, keepdim=True)
        return self._token
