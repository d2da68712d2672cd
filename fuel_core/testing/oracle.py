"""transformers as an oracle of tiny checkpoints: pinned, in float32, with nothing left to a default."""

import warnings
from pathlib import Path
from typing import Any

import torch

from fuel_core.family import Family
from fuel_core.testing.case import Case


class TransformersOracle:
    """A checkpoint folder as transformers runs it.

    Raises:
        AssertionError: transformers left a parameter unfilled or a tensor unused, which it only
            warns about.
    """

    def __init__(self, folder: Path) -> None:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own deprecations are not ours to judge
            load: Any = transformers.AutoModelForCausalLM.from_pretrained  # typed without the info
            model, info = load(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                experts_implementation="eager",
                output_loading_info=True,
                local_files_only=True,
            )
        faults = {key: value for key, value in info.items() if value}
        assert not faults, f"transformers did not load {folder} cleanly: {faults}"
        self.model: Any = model.eval()

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """The logits of every position, float32 ``[T, V]``."""
        ids = torch.tensor([token_ids])
        logits: torch.Tensor = self._call(self.model, ids, use_cache=False).logits
        return logits[0]

    def greedy(self, token_ids: list[int], count: int) -> list[int]:
        """The most probable continuation, through transformers' own cache."""
        ids = torch.tensor([token_ids])
        out: torch.Tensor = self._call(
            self.model.generate,
            ids,
            max_new_tokens=count,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=None,
            pad_token_id=0,
        )
        new: list[int] = out[0, len(token_ids) :].tolist()
        return new

    def _call(self, function: Any, ids: torch.Tensor, **settings: Any) -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # an explicit mask of ones: without it transformers guesses at padding
            return function(ids, attention_mask=torch.ones_like(ids), **settings)


OracleRun = tuple[torch.Tensor, list[int]]
"""The oracle's logits of every position of a sequence, and the sequence."""


class OracleLogits:
    """Runs the oracle once for each tiny config."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[tuple[str, str], OracleRun] = {}

    def run(self, family: Family, tiny: str) -> OracleRun:
        key = (family.name, tiny)
        if key not in self._runs:
            case = Case.build(family, tiny, dtype=torch.float32)
            folder = self._folder / f"{family.name}-{tiny}"
            case.save(folder)
            tokens = case.token_ids(seed=40)
            self._runs[key] = (TransformersOracle(folder).logits(tokens), tokens)
        return self._runs[key]
