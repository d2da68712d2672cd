"""Train a small model of any installed family and write it as a checkpoint of the published form.

::

    python training/train.py --family qwen2 --config training/configs/qwen2.json --output FOLDER --minutes 60

The model is built from the family's own ``plan`` and ``build``. README.md beside this file tells the rest.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from corpus import Corpus, read_corpus
from held_out import Score, measure
from model_card import ModelCard
from optimiser import Rates
from run_state import Budget, RunState, Spent
from target import Target
from tokenizer import learn_tokenizer
from tokenizers import Tokenizer
from trainer import Recipe, start, steps
from windows import TokenStream

from fuel_core import load
from fuel_core.errors import FuelError, RequestError
from fuel_core.plans import ModelPlan
from fuel_core.registry import Registry
from fuel_core.weights.numerics import dtype_of

_STATE_FILE = "training-state.pt"


def main() -> int:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    try:
        train(arguments)
    except FuelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def train(arguments: argparse.Namespace) -> None:
    """Learn a tokenizer, train, and write checkpoint and model card into the output folder.

    Raises:
        FuelError: the family, its config or the text cannot be used, or a run stands there already.
    """
    budget = Budget(tokens=arguments.tokens, minutes=arguments.minutes)
    state_path = arguments.output / _STATE_FILE
    if state_path.exists() and not arguments.resume:
        raise RequestError(f"{state_path} is an unfinished run; add --resume, or choose another --output")
    family = Registry.discover().family(arguments.family)
    target = Target.read(family, arguments.config, arguments.output)
    recipe = _recipe(arguments, target)
    state = start(target, recipe)
    if state_path.exists():
        state.restore(state_path)

    corpus = read_corpus(arguments.text, held_out_share=arguments.held_out_share, seed=arguments.seed)
    tokenizer = learn_tokenizer(corpus.training, vocab_size=target.config["vocab_size"])
    target.write_text_files(tokenizer)
    stream = TokenStream.of(corpus.training, tokenizer)
    print(f"{family.name}: {state.parameters:,} parameters, {len(stream.tokens_N):,} tokens", flush=True)
    for loss in steps(state, stream, recipe, budget):
        if state.spent.steps % arguments.report_steps == 0:
            state.save(state_path)
            target.write_weights(state.decoder)
            score = measure(state.decoder, corpus.held_out, tokenizer, window_tokens=target.context_tokens)
            print(_report(state.spent, budget, loss, score), flush=True)
    state.save(state_path)
    target.write_weights(state.decoder)
    card = _card(arguments, target, corpus, tokenizer, stream, state)
    (target.folder / "README.md").write_text(str(card), encoding="utf-8")
    state_path.unlink()
    print(f"held-out perplexity {card.score.perplexity:.2f}, {card.score.bits_per_byte:.3f} bits per byte")


def _recipe(arguments: argparse.Namespace, target: Target) -> Recipe:
    return Recipe(
        rates=Rates(
            matrices=arguments.matrix_rate, others=arguments.rate, weight_decay=arguments.weight_decay
        ),
        step_tokens=arguments.step_tokens,
        window_tokens=arguments.window_tokens,
        long_window_tokens=target.context_tokens,
        long_share=arguments.long_share,
        dropout=arguments.dropout,
        activations=dtype_of(arguments.activations),
        compiled=arguments.compile,
        seed=arguments.seed,
    )


def _report(spent: Spent, budget: Budget, loss: float, score: Score) -> str:
    return (
        f"{budget.progress(spent):6.1%}  step {spent.steps:,}  {spent.tokens / 1e6:.2f} M tokens  "
        f"{spent.tokens / spent.seconds:,.0f} tokens/s  loss {loss:.3f}  "
        f"held out {score.nats_per_token:.4f} nats, perplexity {score.perplexity:.2f}, "
        f"{score.bits_per_byte:.4f} bits per byte"
    )


def _card(
    arguments: argparse.Namespace,
    target: Target,
    corpus: Corpus,
    tokenizer: Tokenizer,
    stream: TokenStream,
    state: RunState,
) -> ModelCard:
    """Load what was stored, measure it and let it write."""
    stored = load(target.folder, dtype="float32")
    return ModelCard(
        family=target.family.name,
        shape=_shape(stored.plan),
        parameters=state.parameters,
        dtype=str(target.dtype).removeprefix("torch."),
        title=corpus.title,
        licence=corpus.licence,
        documents=len(corpus.training),
        held_out_documents=len(corpus.held_out),
        stream_tokens=len(stream.tokens_N),
        trained_tokens=state.spent.tokens,
        steps=state.spent.steps,
        seconds=state.spent.seconds,
        seed=arguments.seed,
        command=shlex.join(["python", "training/train.py", *_without_output(sys.argv[1:], arguments.output)]),
        score=measure(stored.decoder, corpus.held_out, tokenizer, window_tokens=target.context_tokens),
        context_tokens=target.context_tokens,
        prompt=arguments.prompt,
        continuation=load(target.folder).generate(arguments.prompt, max_tokens=96).text,
    )


def _shape(plan: ModelPlan) -> str:
    kinds = dict.fromkeys(f"{layer.mixer}; {layer.feed_forward}" for layer in plan.layers)
    return f"{len(plan.layers)} layers of width {plan.hidden_size}: {' / '.join(kinds)}"


def _without_output(words: Sequence[str], output: Path) -> list[str]:
    """A command line that names no folder of this machine."""
    return ["FOLDER" if word == str(output) else word for word in words if word != "--resume"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a small model of an installed family.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--family", required=True, help="name of an installed family")
    option("--config", required=True, type=Path, help="config.json of the model to train")
    option("--output", required=True, type=Path, help="checkpoint folder to write")
    option("--text", type=Path, help="UTF-8 file to learn from, instead of the King James Bible")
    option("--prompt", default="In the beginning", help="what the model card's sample continues")
    option("--held-out-share", type=float, default=0.02, help="share of the documents not learnt from")
    option("--tokens", type=int, help="length of the run in tokens; the same run on every repetition")
    option("--minutes", type=float, help="length of the run in minutes at work")
    option("--matrix-rate", type=float, default=0.02, help="peak learning rate of the layers' matrices")
    option("--rate", type=float, default=0.005, help="peak learning rate of all other parameters")
    option("--weight-decay", type=float, default=0.1, help="of all but vectors")
    option("--step-tokens", type=int, default=2048, help="tokens a step, over all its windows")
    option("--window-tokens", type=int, default=256, help="tokens a window")
    option("--long-share", type=float, default=0.15, help="last share, in windows of all positions")
    option("--dropout", type=float, default=0.05, help="share of each linear layer's inputs left out")
    option("--activations", default="float32", help="dtype of activations; bfloat16 where the CPU has it")
    option("--compile", action="store_true", help="train through torch.compile; needs a C++ compiler")
    option("--threads", type=int, default=1, help="CPU threads")
    option("--seed", type=int, default=0, help="of the held-out draw, the first weights, windows and dropout")
    option("--report-steps", type=int, default=250, help="steps between two reports, each with a saving")
    option("--resume", action="store_true", help="go on with the unfinished run in the output folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
