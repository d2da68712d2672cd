"""What earlier tokens do to the next one's logits.

Source: the repetition penalty of CTRL (arXiv:1909.05858) as transformers applies it, over prompt and
generated tokens; presence and frequency penalties as OpenAI's API defines them, over generated ones.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from fuel_core.generate.sampling import Sampling


def changes_logits(sampling: Sampling) -> bool:
    """Whether :func:`penalise` may return anything but its input."""
    penalties = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    return bool(penalties or sampling.logit_bias)


def penalise(
    logits_V: torch.Tensor, sampling: Sampling, prompt: Sequence[int], generated: Sequence[int]
) -> torch.Tensor:
    """Return logits with penalties and biases applied, float32 or wider; the input is left alone.

    Neutral settings return the input itself.
    """
    if sampling.repetition_penalty != 1:
        seen = _ids({*prompt, *generated}, logits_V)
        scores = logits_V[seen]
        factor = sampling.repetition_penalty
        logits_V = logits_V.index_copy(0, seen, torch.where(scores < 0, scores * factor, scores / factor))
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = Counter(generated)
        cost = {
            token: -(sampling.presence_penalty + count * sampling.frequency_penalty)
            for token, count in counts.items()
        }
        logits_V = _add(logits_V, cost)
    return _add(logits_V, sampling.logit_bias)


def _add(logits_V: torch.Tensor, amounts: Mapping[int, float]) -> torch.Tensor:
    if not amounts:
        return logits_V
    values = torch.tensor(list(amounts.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, _ids(amounts, logits_V), values)


def _ids(tokens: object, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sorted(tokens) if isinstance(tokens, set) else list(tokens), device=like.device)  # type: ignore[call-overload]
