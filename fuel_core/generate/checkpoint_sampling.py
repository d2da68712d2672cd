"""How a checkpoint has its tokens chosen where the caller does not say: generation_config.json.

Source: ``GenerationConfig`` of transformers 5.23, its keys and what an absent one means there.
"""

import warnings
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from fuel_core.errors import ConfigError, FuelWarning, RequestError
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.stopping import GENERATION_CONFIG_FILE

_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Of what samples; what does not is greedy."""

_NEUTRAL_DRAWN: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1.0,),
    "top_h": (),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
"""As below, of what changes drawn texts alone."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_time": (),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "watermarking_config": (),
    "token_healing": (False,),
    "dola_layers": (),
    "use_mtp": (False,),
    "bad_words_ids": ([],),
    "sequence_bias": ([], {}),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1, 1.0),
    "penalty_alpha": (0.0,),
    "stop_strings": ([],),
}
"""Keys that would change a text and that fuel does not do -> their values, null beside, that change none."""


def checkpoint_sampling(
    generation_config: Mapping[str, Any] | None,
    asked: Mapping[str, Any] = MappingProxyType({}),
    *,
    source: str = GENERATION_CONFIG_FILE,
) -> Sampling:
    """The sampling of a generation_config.json; the most probable token where it does not sample, or is not
    there. Warns of what it asks for beyond that.

    Args:
        asked: fields of :class:`Sampling` that a caller has instead.
        source: where the file comes from, for messages.

    Raises:
        RequestError: a value that was asked for is out of its range.
        ConfigError: one of the file is.
    """
    unknown = sorted(asked.keys() - {field.name for field in fields(Sampling)})
    if unknown:
        raise RequestError(f"{', '.join(unknown)} is no field of Sampling")
    Sampling(**asked)
    given = {key: value for key, value in (generation_config or {}).items() if value is not None}
    known = {**_NEUTRAL, **(_NEUTRAL_DRAWN if given.get("do_sample", False) else {})}
    ignored = [key for key, neutral in known.items() if key in given and given[key] not in neutral]
    if ignored:
        warnings.warn(
            f"{source} asks for {', '.join(ignored)}, which fuel does not do: texts may "
            "differ from those of its publisher",
            FuelWarning,
            stacklevel=2,
        )
    chosen = {"repetition_penalty": given.get("repetition_penalty", 1.0)}
    if given.get("do_sample", False):
        chosen |= {key: given.get(key, default) for key, default in _DEFAULTS.items()}
    try:
        return Sampling(**{**chosen, **asked})
    except RequestError as error:
        raise ConfigError(f"{source}: {error}; say how tokens are chosen, or mend the file") from error
