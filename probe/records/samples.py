"""Rows of what was sampled: answers, their tokens, and what became of them."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import field

from probe.records.row import Row


class Sample(Row, kw_only=True, tag="samples"):
    """One answer of a batch that was told by ``probe.samples`` or an adapter; ``step`` is the one it was told in.

    Numbers of a token are over its response tokens that the loss counts; log-probabilities are natural logarithms. Of a
    large batch only some samples have a row, ``chosen_by`` says why this one has; ``token_fates`` knows of all of them.
    """

    sampled: ClassVar[bool] = True

    batch_id: int  #: unique in the process: the told batch
    row: int  #: its place in that batch, from 0
    uid: str = ""
    group: str = ""  #: answers of one prompt share it
    prompt_tokens: int | None = None
    response_tokens: int  #: sampled, and those that tools gave between them
    loss_tokens: int | None = None  #: of the response, that the loss counts
    turns: int | None = None  #: the model's own, in the conversation
    tools: int | None = None  #: calls of tools that it made in the conversation
    ended: str = ""  #: why generation ended, such as "stop" or "length"
    truncated: bool | None = None  #: whether it ended at the limit of tokens
    reward: float | None = None
    advantage_mean: float | None = None
    advantage_smallest: float | None = None
    advantage_largest: float | None = None
    rollout_log_prob_mean: float | None = None  #: as the engine that sampled says
    rollout_log_prob_smallest: float | None = None
    log_prob_mean: float | None = None  #: as the model that trains says, before the update
    log_prob_smallest: float | None = None
    difference_mean: float | None = None  #: training minus rollout
    difference_largest: float | None = None  #: the largest magnitude of these differences, its sign kept
    difference_at: int | None = None  #: at which response token, from 0
    entropy_mean: float | None = None
    nan_count: int = 0  #: NaN among its rewards, advantages, log-probabilities and entropies
    weight_version: int | None = None  #: of the weights that sampled it, as the trainer counts them
    replica: str = ""  #: name of the engine that sampled it
    begin_ns: int | None = None  #: of its request, monotonic; None where only those of the whole batch are known
    end_ns: int | None = None  #: when its answer was whole, likewise
    #: whether its rollout failed, None where it wasn't recorded; a tool's error that the model was told is no failure
    has_error: bool | None = None
    masked: bool | None = None  #: whether the loss counts none of its tokens
    trainable: bool | None = None  #: whether it reaches the loss: it isn't dropped, and the loss counts a token of it
    dropped: str = ""  #: why it was never trained: "truncated", "stale", "filtered", "failed", or another word
    passes: int | None = None  #: how often it was trained in this step; None where it wasn't recorded
    #: of each pass the index of its micro-batch, −1 where that isn't known
    micro_batches: list[int] = field(default_factory=list)
    masked_tokens: int = 0  #: its tokens by fate, with these sums to response_tokens
    no_advantage_tokens: int = 0
    clipped_tokens: int = 0
    carried_tokens: int = 0
    clip_unknown_tokens: int = 0
    unknown_tokens: int = 0
    dropped_tokens: int = 0
    chosen_by: str = "all"  #: "all", "nan", "worst", "longest", "no_advantage" or "random"
    prompt_text: str | None = None  #: texts and ids only where ``probe.start(samples="text")`` asks for them
    response_text: str | None = None
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)


class TokenBlock(Row, kw_only=True, tag="token_blocks"):
    """What is known of each response token of one sample: arrays of one length, packed.

    ``data`` is the arrays one behind the other, little-endian, compressed by zlib, in base64;
    :func:`probe.analysis.token_blocks.unpack` takes them apart. The ratio of training to rollout is
    ``exp(log_probs - rollout_log_probs)``.
    """

    sampled: ClassVar[bool] = True

    batch_id: int  #: with ``row``, the sample
    row: int
    tokens: int  #: length of each array
    arrays: list[str]  #: their names, in order
    dtypes: list[str]  #: of each "f2" (half precision: 3 significant digits), "f4" or "u1"
    data: str
    chosen_by: str = ""  #: as of the sample


class Rollout(Row, kw_only=True, tag="rollouts"):
    """What one replica did of a told batch: all of its samples, whatever was left out of ``samples``.

    ``requests_begin_ns`` and ``requests_end_ns`` are after ``begin_ns``, of one request each, in the order of their
    ends; of more than 4096 of a batch they are every k-th of them, the last among them. A quantile of n times is the
    smallest that at least this share of them doesn't exceed. Sums are over tokens that the loss counts and of which
    both log-probabilities are finite; r is the importance ratio, training ÷ rollout, its logarithm cut to ±20.
    """

    batch_id: int  #: unique in the process: the told batch; −1 for samples that were only timed
    source: str  #: who told
    replica: str = ""  #: its name; "" where it wasn't recorded
    samples: int
    timed: int = 0  #: of these, with begin and end of its own
    together: bool = False  #: begin and end are those of the whole batch: when each answer ended isn't known
    begin_ns: int | None = None  #: of the first request, monotonic
    end_ns: int | None = None  #: of the last one that ended
    median_ns: int | None = None  #: from request to end
    ninth_decile_ns: int | None = None  #: likewise: 90 % took no longer
    longest_ns: int | None = None
    requests_begin_ns: list[int] = field(default_factory=list)
    requests_end_ns: list[int] = field(default_factory=list)
    requests_tokens: list[int] = field(default_factory=list)  #: of the response, in the same order; [] where unknown
    #: likewise, 1 where it has the larger reward of a batch that has two different ones, else 0; [] where it has others
    requests_right: list[int] = field(default_factory=list)
    trainer_version: int | None = None  #: of the weights that the trainer has as it trains these samples
    weight_versions: list[int] = field(default_factory=list)  #: of the weights that sampled, each once
    version_samples: list[int] = field(default_factory=list)  #: how many samples of each
    compared_tokens: int | None = None  #: None where either log-probability wasn't recorded
    minus_log_ratio_sum: float = 0.0  #: of −log r
    k3_sum: float = 0.0  #: of r − 1 − log r
    ratio_sum: float = 0.0  #: of r
    ratio_squares_sum: float = 0.0  #: of r²
    below_tokens: int = 0  #: with r below 0.5
    above_tokens: int = 0  #: with r above 2


class TokenFate(Row, kw_only=True, tag="token_fates"):
    """What became of the sampled tokens of one told batch: one row a fate, "carried" always among them.

    The tokens of a ``(process, batch_id)`` sum exactly to its ``batch_tokens``, whatever was left out of ``samples``.
    Where a later step trains the batch again, further rows with its ``trained_step`` say by how many tokens and samples
    a fate becomes more or fewer: those of a batch and step add up to 0 tokens.
    """

    batch_id: int
    source: str  #: who told of the batch
    fate: str  #: one of :data:`FATES`
    tokens: int
    samples: int  #: that have at least one such token
    batch_tokens: int  #: response tokens of all samples
    batch_prompt_tokens: int | None = None
    batch_samples: int
    complete: bool = True  #: whether the fate of each of its tokens is known
    #: whether it is known of each of its tokens whether it reached the loss with an advantage; None in older runs
    reach_known: bool | None = None
    kept_samples: int  #: that have a row in ``samples``
    kept_blocks: int = 0  #: that have one in ``token_blocks``
    equal_tokens: int | None = None  #: of this fate, in groups whose rewards are all equal; None without groups
    #: what else the loss has, such as "KL": its gradient flows without advantage, too
    loss_terms: list[str] = field(default_factory=list)
    trained_step: int | None = None  #: the later step that made this known; None of the rows as ``step`` ended


class LaterPasses(Row, kw_only=True, tag="later_passes"):
    """What a later step trained of the answers of one told batch that have a row in ``samples``: one row a batch and
    later step. ``step`` is the one that the batch was told in, whose rows of ``samples`` know its own passes alone.
    """

    batch_id: int  #: unique in the process: the told batch
    trained_step: int  #: the later step
    rows: list[int] = field(default_factory=list)  #: places of the answers that it trained, in the batch
    passes: list[int] = field(default_factory=list)  #: of each, how often
    #: of each pass the index of its micro-batch in that step, −1 where that isn't known, one answer behind the other
    micro_batches: list[int] = field(default_factory=list)
    carried_tokens: list[int] = field(default_factory=list)  #: of each, by how many they become more
    clipped_tokens: list[int] = field(default_factory=list)  #: likewise; ``clip_unknown_tokens`` become as many fewer


#: What becomes of a sampled token: the first that applies. "clip_unknown" has reached the loss with an advantage, and
#: it isn't known whether it was clipped; "unknown": it wasn't recorded.
FATES: Final = (
    "truncated",
    "stale",
    "filtered",
    "failed",
    "dropped",
    "masked",
    "no_advantage",
    "clipped",
    "carried",
    "clip_unknown",
    "unknown",
)


#: Fates of tokens of which something isn't known.
NOT_KNOWN: Final = ("clip_unknown", "unknown")


class TokenIdentity(Row, kw_only=True, tag="token_identity"):
    """Whether the tokens of one told batch that the loss counts are those that were sampled: one row a batch.

    An answer is the same where its counted tokens are the sampled ones, in their order. It may end sooner, and where
    the loss leaves out some of its tokens, sampled ones may be among these; anything else is a change. Token ids stand
    here only where ``probe.start(samples="text")`` keeps them.
    """

    batch_id: int  #: unique in the process: the told batch; −1 where the process knows of none
    source: str  #: who told
    answers: int  #: that were compared; dropped ones aren't trained
    trained_tokens: int  #: of these, that the loss counts
    sampled_tokens: int  #: of these
    changed_answers: int
    changed_tokens: int  #: that the loss counts, in each changed answer from the first changed one on
    changed_rows: list[int] = field(default_factory=list)  #: the places of changed answers in the batch, the first 64
    #: names of the first 64 changed answers where the process knows of no batch: the ``uid`` that each has in samples
    changed_uids: list[str] = field(default_factory=list)
    first_uid: str = ""  #: of the first changed answer
    first_token: int | None = None  #: which of its response tokens is the first changed one, from 0
    sampled_id: int | None = None  #: what was sampled there; None where the engine had come to its end
    trained_id: int | None = None  #: what is trained there


class GroupBaseline(Row, kw_only=True, tag="group_baselines"):
    """Whether answers that failed, or of which the loss counts no token, move the baseline of their group.

    One row a told batch that has any such answer. Rewards and advantages of the answers that are trained say where the
    baseline lies, and so whose mean it is (probe/recorders/group_baselines.py).
    """

    batch_id: int  #: unique in the process: the told batch
    source: str  #: who told
    answers: int  #: of the batch
    failed_answers: int  #: that were told to have failed
    masked_answers: int  #: of the others, that are dropped or of which the loss counts no token
    groups: int = 0  #: that have such answers
    moved_groups: int = 0  #: of these, whose baseline counts them
    moved_by_failed: int = 0  #: of these, with answers that failed
    elsewhere_groups: int = 0  #: whose baseline is neither mean, as of a group that isn't told whole
    unknown_groups: int = 0  #: of which that can't be told
    moved_answers: int = 0  #: trained answers whose advantage they change
    shift_mean: float | None = None  #: by how much they move a baseline, in rewards, without its sign
    shift_largest: float | None = None
    failed_reward_mean: float | None = None  #: what failed answers of moved groups count as
    first_group: str = ""  #: the name of the first moved one; where there are, of the first with answers that failed
    answers_by_failed: int = 0  #: of moved_answers, those of groups with answers that failed
    shift_by_failed: float | None = None  #: shift_mean of these groups
