"""The README of a checkpoint: what it is, what it was made of, how well it does, what it cannot do."""

from dataclasses import dataclass

from held_out import Score


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The facts of one finished run.

    Attributes:
        family: the model's family.
        shape: its config in a few words.
        parameters: their number, shared ones once.
        dtype: of the stored weights.
        title, licence: of the text.
        documents, held_out_documents, stream_tokens: how the text was used.
        trained_tokens, seconds, steps: what the run took.
        command: reproduces it.
        score: of the stored weights on the held-out documents.
        context_tokens: the longest context of ``score``.
        prompt, continuation: what it writes, always taking the likeliest token.
    """

    family: str
    shape: str
    parameters: int
    dtype: str
    title: str
    licence: str
    documents: int
    held_out_documents: int
    stream_tokens: int
    trained_tokens: int
    steps: int
    seconds: float
    seed: int
    command: str
    score: Score
    context_tokens: int
    prompt: str
    continuation: str

    def __str__(self) -> str:
        quoted = "\n".join(f"> {line}  " for line in (self.prompt + self.continuation).splitlines())
        return f"""# A small {self.family} model

A language model of {self.parameters:,} parameters in the published {self.family} form: small enough to
ship, real enough to write English. It shows that an installation works from checkpoint to text; it
knows nothing but the text that it was trained on.

| | |
|---|---|
| family | {self.family} |
| shape | {self.shape} |
| parameters | {self.parameters:,}, stored as {self.dtype} |
| text | {self.title}: {self.documents:,} documents, {self.stream_tokens:,} tokens |
| held out | {self.held_out_documents} whole documents, drawn by the seed |
| training | {self.trained_tokens:,} tokens ({self.trained_tokens / self.stream_tokens:.1f} times the text), \
{self.steps:,} steps, {self.seconds / 60:.0f} minutes |
| seed | {self.seed} |
| held-out perplexity | **{self.score.perplexity:.2f}** per token, {self.score.byte_perplexity:.3f} per byte |
| held-out bits per byte | **{self.score.bits_per_byte:.3f}** |

The held-out figures are of the stored weights, computed in float32 over {self.score.tokens:,} tokens
({self.score.text_bytes:,} bytes), each predicted once from at most {self.context_tokens:,} tokens before it.
The tokenizer did not see these documents either; the training recipe was chosen by them.

## What it writes

`{self.prompt}`, continued greedily:

{quoted}

## Limits

It imitates one book's language. It answers no questions, follows no instructions, and its sentences
state nothing. Passages of the text itself can come out word for word, and passages that look like it
can be in no edition of it.

## Licence

The text: {self.licence}. The weights are derived from it and from a random number generator, and carry
the licence of the package that ships them.

## How it was made

```
{self.command}
```
"""
