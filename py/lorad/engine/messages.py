"""What the front process and the engine process say to each other (msgpack, one tagged struct per message).

The front owns names, tokenizer and text; the engine owns generations, tokens and pages. A request names its adapter by
generation, so a name can be pointed elsewhere while requests run.
"""

from __future__ import annotations

import msgspec

from lorad.adapters.combine.weighted import Term
from lorad.config import EngineConfig


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request samples. Ranges are checked by the front before it sends."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    min_p: float = 0.0
    seed: int = 0
    """The front draws one when the client gives none."""
    stop_token_ids: tuple[int, ...] = ()
    """Ends the request; the end-of-text tokens are among them unless `ignore_eos` was asked for."""
    logprobs: int = -1
    """-1: none; 0: of the chosen token; n: also of the n best."""
    prompt_logprobs: int = -1
    """Likewise of the prompt's tokens from the second on; told at the end. All of it is computed, cached or not."""
    logit_bias: dict[int, float] = {}
    """Added to these tokens' logits, before anything else."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the answer has."""
    frequency_penalty: float = 0.0
    """Likewise, for each time."""
    repetition_penalty: float = 1.0
    """Divides a positive logit of each token that the prompt or the answer has, multiplies another; 1: off."""
    min_tokens: int = 0
    """Tokens before which no stop token can be sampled."""
    grammar: str = ""
    """llguidance's form of what the answer follows; made by `lorad.grammars`. It ends where the grammar lets it."""


# front -> engine


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message: load this model; answered by Opened and Progress, then Ready or Fatal."""

    config: EngineConfig
    will_load: bool = False
    """Adapters will be loaded while it serves: what that needs is got ready beside the first requests."""


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """Run `prompt` under a generation ("" is the base)."""

    id: int
    prompt: list[int]
    sampling: Sampling
    generation: str = ""
    tenant: int = 0
    after: int | None = None
    """A request with the same prompt, of which this one wants the computed pages: further answers to one prompt."""
    more: int = 0
    """So many messages follow at once that belong to the same client's request. They're queued together, between two
    steps: where one is refused, nothing was made of the others yet."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request early; Finished tells when it has. Unknown or ended ids are fine."""

    id: int


class LoadAdapter(msgspec.Struct, frozen=True, tag="load"):
    """Read, check and register an adapter folder; answered by AdapterLoaded or CallFailed. Each AdapterLoaded wants a
    ReleaseAdapter: the same content loaded twice is one generation that is held twice."""

    call: int
    name: str
    path: str


class CombineAdapters(msgspec.Struct, frozen=True, tag="combine"):
    """Register the sum of registered adapters; answered like LoadAdapter, and wants a ReleaseAdapter likewise. The
    generation is `generation_of(terms)`."""

    call: int
    terms: list[Term]


class ReleaseAdapter(msgspec.Struct, frozen=True, tag="release"):
    """Undo one load of a generation. The last one stops its admission, lets its requests end, then forgets it, and is
    answered by CallDone only then; the others at once, or by CallFailed."""

    call: int
    generation: str
    pinned: bool = False
    """It was pinned for this load."""


class PinAdapter(msgspec.Struct, frozen=True, tag="pin"):
    """Keep a generation in pages, or no longer; answered by CallDone or CallFailed."""

    call: int
    generation: str
    pinned: bool


class PrewarmAdapter(msgspec.Struct, frozen=True, tag="prewarm"):
    """Page a generation in when there is room; answered by CallDone or CallFailed. Stats tell when it's hot."""

    call: int
    generation: str


class SetTenant(msgspec.Struct, frozen=True, tag="tenant"):
    """Give a tenant its share and the limits that the scheduler keeps; answered by CallDone or CallFailed."""

    call: int
    tenant: int
    weight: int = 100
    """1 to 1000."""
    running_max: int = 0
    """Sequences; of this and the following, 0: no limit."""
    waiting_max: int = 0
    pages_max: int = 0


class GetStats(msgspec.Struct, frozen=True, tag="get_stats"):
    """Ask for Stats."""

    call: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process now; the front has drained it."""


ToEngine = (
    Start
    | Generate
    | Abort
    | LoadAdapter
    | CombineAdapters
    | ReleaseAdapter
    | PinAdapter
    | PrewarmAdapter
    | SetTenant
    | GetStats
    | Shutdown
)


# engine -> front


class ModelInfo(msgspec.Struct, frozen=True):
    """The base model, as the front needs to know it."""

    architecture: str
    digest: str
    vocab_size: int
    context_length: int
    """Longest prompt plus output, in tokens, that a request may have here."""
    dtype: str
    layers: int
    weights_bytes: int
    pages: int
    page_tokens: int
    page_bytes: int
    context_limit: str = "the context length"
    """What `context_length` follows from."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """What the engine is doing while it starts; `total` 0: unknown."""

    stage: str
    done: int
    total: int


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Which base it is; its weights aren't read yet."""

    digest: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The base is loaded and requests are taken."""

    model: ModelInfo


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of the chosen token and of the best ones, natural log: the model's own, before temperature and
    whatever the request changes of its logits."""

    chosen: float
    top: list[tuple[int, float]] = []


class Token(msgspec.Struct, frozen=True, array_like=True):
    """One sampled token of one request."""

    id: int
    token: int
    logprobs: TokenLogprobs | None = None


class Waits(msgspec.Struct, frozen=True, array_like=True):
    """What a request waited for before it first ran, in seconds."""

    tier: str
    """Where its adapter was when it arrived: remote, cold, loading, hot, failed; base: it has none."""
    queue_s: float
    """In all."""
    load_s: float
    """Of it: while its adapter was copied into pages."""
    preemptions: int = 0
    """How often it gave its pages up, and was computed again."""
    load_bytes: int = 0
    """Of that page-in, for one of those that waited for it: the first to end. 0 for all others."""


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request has ended. `reason`: stop (a stop token, which is not among the tokens), length, abort, error."""

    id: int
    reason: str
    error: Failure | None = None
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] = []
    waits: Waits | None = None
    """None: it was refused, or nothing is known of it any more."""
    stop_token: Token | None = None
    """The one that ended it."""


class Failure(msgspec.Struct, frozen=True):
    """A refusal on its way to the front: the class name in `errors.KINDS` and its fields."""

    kind: str
    code: str
    message: str
    param: str | None = None


class Step(msgspec.Struct, frozen=True, tag="step"):
    """What one step made: all its tokens, then all that ended. Tokens of a request precede its end."""

    tokens: list[Token]
    finished: list[Finished]


class AdapterInfo(msgspec.Struct, frozen=True):
    """A registered adapter."""

    name: str
    generation: str
    rank: int
    """The largest rank of its modules."""
    modules: int
    """(layer, module) pairs that it adapts."""
    pages: int
    bytes: int
    path: str
    warnings: tuple[str, ...] = ()
    """What isn't wrong and should be known."""
    life: int = 0
    """`EngineHandle.life` of the process that holds it; the front's note."""
    chat_template: str = ""
    """Source of the template that came with it; "": none did."""


class AdapterLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """Answers LoadAdapter and CombineAdapters: the adapter can be served now."""

    call: int
    adapter: AdapterInfo


class CallDone(msgspec.Struct, frozen=True, tag="done"):
    """Answers a call that has nothing to tell."""

    call: int


class CallFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Answers a call that was refused; nothing has changed."""

    call: int
    failure: Failure


PAGE_IN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the classes of `Stats.page_in_counts`."""


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Counters of the engine at one moment."""

    call: int
    running: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_sequences: int
    pages_adapters: int
    pages_cached: int
    preemptions: int
    evictions: int
    page_ins: int
    page_in_bytes: int
    page_in_seconds: float
    """What those took, one after the other."""
    steps: int
    adapters: dict[str, AdapterStats]
    """By generation."""
    tenants: dict[int, TenantStats] = {}
    """By number."""
    page_ins_failed: int = 0
    page_in_counts: tuple[int, ...] = ()
    """Page-ins by what each took: up to each of `PAGE_IN_SECONDS`, then longer; () is none."""
    resident_bytes: int = 0
    """Memory of the engine's process; 0: the system doesn't tell."""


class AdapterStats(msgspec.Struct, frozen=True):
    """One adapter at one moment. `state`: cold, loading, hot, draining, failed."""

    state: str
    running: int
    waiting: int
    pages: int


class TenantStats(msgspec.Struct, frozen=True):
    """One tenant at one moment."""

    service_ns: int
    """What it was charged over its weight, in the cost model's time: the least one is next. Who comes back rises to the
    others'."""
    running: int
    waiting: int
    pages: int


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine can't go on (or can't start); it exits after this."""

    failure: Failure


ToFront = Progress | Opened | Ready | Step | AdapterLoaded | CallDone | CallFailed | Stats | Fatal
