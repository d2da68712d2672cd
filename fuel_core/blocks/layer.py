"""How the parts of a layer are joined."""

from torch import Tensor, nn

from fuel_core.blocks.norm import sum_and_norm
from fuel_core.step import LayerStep


class PreNormLayer(nn.Module):
    """``x + mixer(norm(x))``, then ``x + feed_forward(norm(x))``: Llama, Qwen, DeepSeek."""

    def __init__(
        self,
        *,
        mixer_norm: nn.Module,
        mixer: nn.Module,
        feed_forward_norm: nn.Module,
        feed_forward: nn.Module,
    ) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = mixer_norm, mixer
        self.feed_forward_norm, self.feed_forward = feed_forward_norm, feed_forward

    def forward(self, x_BTM: Tensor, step: LayerStep) -> Tensor:
        mixed_BTM = self.mixer(self.mixer_norm(x_BTM), step)
        x_BTM, normed_BTM = sum_and_norm(self.feed_forward_norm, x_BTM, mixed_BTM)
        return x_BTM + self.feed_forward(normed_BTM)


class ParallelLayer(nn.Module):
    """``x + mixer(norm(x)) + feed_forward(norm(x))`` with one norm for both: Phi-1 to Phi-2."""

    def __init__(self, *, norm: nn.Module, mixer: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer, self.feed_forward = norm, mixer, feed_forward

    def forward(self, x_BTM: Tensor, step: LayerStep) -> Tensor:
        normed_BTM = self.norm(x_BTM)
        return x_BTM + self.mixer(normed_BTM, step) + self.feed_forward(normed_BTM)
