"""The narrow waist: the row types. Whatever passes from one package of probe to another is one of these.

Units are in the names: ``_bytes``, ``_ns`` (nanoseconds), ``_tokens``, ``_ratio`` (0 to 1, or a quotient).
Times are ``time.monotonic_ns()`` of the writing process; its :class:`Process` row holds the wall clock that belongs
to one such time. ``None`` means unknown: no number is invented. GiB means 1024³ bytes.

A recorder fills what it knows. The session fills the stamp (``attempt`` ... ``scope``) from the process and the scope
that the event happened in; :func:`stamp` is that one place.

``(process, scope_id)`` names a scope of a run, and ``(process, batch_id)`` a batch: numbers begin anew in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import msgspec

#: Raised when a field changes its meaning or goes away. New optional fields don't need it.
SCHEMA_VERSION: Final = 2

GIB: Final = 1024**3


class Row(msgspec.Struct, kw_only=True, tag_field="table", omit_defaults=False, gc=False):  # it is in no cycle
    """What every row carries: when and where."""

    #: A full queue drops the oldest rows of sampled tables first.
    sampled: ClassVar[bool] = False

    time_ns: int = 0  #: monotonic; the end of what the row describes
    attempt: int = 1  #: one launch of the job, shared by its processes; the first is 1
    process: str = ""  #: unique in the run: "rank-00000" or "driver"; "driver.1" for one that took its place later
    rank: int | None = None  #: None until known; of a process that learns it late, readers know it in all rows
    step: int | None = None
    role: str | None = None
    phase: str | None = None
    micro_batch: int | None = None
    scope_id: int = 0  #: unique in the process; 0 is the process itself
    scope: str = ""  #: names from the outermost scope inward, joined by "/"


class Process(Row, kw_only=True, tag="process"):
    """The first row of each file: who writes, and which wall-clock time belongs to ``time_ns``."""

    schema_version: int = SCHEMA_VERSION
    revision: int = 0  #: the newest counts: each says all that its process knows of itself by then
    wall_ns: int = 0  #: ``time.time_ns()`` at ``time_ns``
    pid: int = 0
    host: str = ""
    world_size: int = 1
    device: str = ""  #: "cuda:0"; "cpu" means that memory is the process's RSS
    device_name: str = ""
    name: str = ""  #: what it is shown as while it has no rank: of an actor, a child process, a script
    node: str = ""  #: the machine as its launcher calls it; "" until known
    local_rank: int | None = None
    adapters: str = ""  #: the frameworks that are observed in it, and which of their points weren't found
    tables: str = ""  #: the row types that its recorders bring themselves, as probe/runs/row_types.py describes them


class Memory(Row, kw_only=True, tag="memory"):
    """Memory of one device at one moment: an end of a scope, or a sample in between.

    On a machine without an accelerator ``source`` is "process_rss" and allocated means the process's resident set;
    there is nothing to reserve, and ``reserved_bytes`` stays None.
    """

    sampled: ClassVar[bool] = True

    edge: str  #: "enter", "leave" or "sample"
    kind: str = ""  #: kind of the scope: "step", "phase", "watch", "micro_batch"; "" for a sample
    name: str = ""  #: name of the scope
    parent_id: int | None = None  #: scope_id of the enclosing scope
    device: str = ""
    source: str = ""  #: "cuda", "accelerator", "process_rss" or "fake"
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    #: Only at "leave": the largest value between the scope's ends, its children's included.
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    #: "exact"; "at_most" (counters were never reset, so the peak may be older); "at_least" (only samples are known)
    peak_kind: str | None = None
    device_used_bytes: int | None = None  #: all processes on the device
    device_total_bytes: int | None = None
    #: device_used − reserved − other_processes: context and libraries, and other processes where they aren't known
    non_torch_bytes: int | None = None
    other_processes_bytes: int | None = None  #: of the device, as the driver counts them by process id
    process_rss_bytes: int | None = None
    host_duration_ns: int | None = None  #: only at "leave", and always there
    device_duration_ns: int | None = None  #: from device events; None where there are none
    #: how often, since the process began, an allocation failed at first and went well after torch gave its cache back
    alloc_retries: int | None = None


class HostMemory(Row, kw_only=True, tag="host_memory"):
    """What a process and its container hold of the machine's memory, as Linux counts it; sampled every half minute."""

    sampled: ClassVar[bool] = True

    rss_bytes: int | None = None  #: resident, what is shared with others included
    pss_bytes: int | None = None  #: resident, what is shared divided by those who share it
    uss_bytes: int | None = None  #: resident and of nobody else: what goes when the process ends
    shared_bytes: int | None = None  #: resident and mapped by others, too: libraries, files, memory of a parent
    shmem_bytes: int | None = (
        None  #: its part of shared memory such as /dev/shm, which loaders' workers send batches in
    )
    pinned_bytes: int | None = (
        None  #: locked or pinned, as far as the kernel knows; a driver's own pins may not be in it
    )
    torch_pinned_bytes: int | None = None  #: that torch's allocator of pinned memory has, in use or kept for later
    torch_pinned_active_bytes: int | None = None  #: of it in use; both None where torch counts neither
    swapped_bytes: int | None = None
    cgroup_limit_bytes: int | None = None  #: at which the container's processes are killed; None without a limit
    cgroup_used_bytes: int | None = None  #: by all processes of the container, cached files included
    cgroup_reclaimable_bytes: int | None = None  #: of it cached files that the kernel gives up first


class MicroBatch(Row, kw_only=True, tag="micro_batches"):
    """One micro-batch of one batch on one rank; ``micro_batch`` of the stamp is its index."""

    batch_id: int  #: unique in the process: rows of one call share it
    micro_batches: int | None  #: how many the batch was cut into; None where the code that cut it didn't tell
    sequences: int
    lengths: list[int]  #: tokens of each of its sequences
    indices: list[int] = []  #: rows of the batch that it holds
    tokens: int  #: sum of lengths
    width_tokens: int | None = (
        None  #: padded width of what is computed on; None for jagged input, and where the model packs
    )
    cap_tokens: int | None = None
    utilisation_ratio: float | None = None  #: tokens / cap
    over_cap: bool = False
    workload: float | None = None  #: attention-aware cost in arbitrary units
    effective_tokens: int | None = None  #: that the loss counts; None where the code that cut it didn't tell
    source: str = ""  #: the hook point that formed it


class Partition(Row, kw_only=True, tag="partitions"):
    """One cut of a batch into micro-batches, one dealing of its rows to ranks, or one packing of rows of the data set
    into sequences: by whose rule, and what it was given.

    With the lengths of the rows that is enough to cut the batch again. Those of micro-batches stand in the rows of
    ``micro_batches`` with the same ``batch_id``, by index.
    """

    batch_id: int  #: unique in the process, that of the micro-batches
    level: str  #: "micro_batches", "ranks" or "data_set"
    parts: int  #: how many
    sequences: int
    padded_rows: int = 0  #: of the sequences, the last ones, which only fill the batch up
    packer: str = ""  #: by whose rule, such as "probe" or "verl 0.9.1"; "" where there is none to name
    arguments: str = "{}"  #: all that the packer was given, as JSON by name
    lengths: list[int] = []  #: tokens of each sequence; not of micro-batches
    assignment: list[int] = []  #: the part that each sequence went to; of ranks only
    parts_tokens: list[int] = []  #: of each part
    source: str = ""  #: the function that cut it


#: Sources of padding rows that tell of micro-batches: where a process has such rows in a step, they make up its padding
#: tax, since the batches that they were cut from hold the same tokens.
PLANNED_SOURCES: Final = (
    "seqlen_balancing.partition",
    "packing.packed",
    "batched_data_dict.partition",
    "micro_batch.told",
)

#: Sources of padding rows that tell of no rectangle of the trainer's: they never count for the padding tax.
APART_SOURCES: Final = ("codec.packed", "padding.added", "ulysses.padded")


def counts_for_tax(source: str, cut: bool) -> bool:
    """Whether padding rows of a source make up a step's padding tax.

    Args:
        source: Of the rows.
        cut: Whether their process has told of micro-batches in their step.

    Returns:
        True where they count; SQL says the same in the views of ``probe/runs/views.sql``.

    >>> counts_for_tax("data_proto.from_dict", False), counts_for_tax("data_proto.from_dict", True)
    (True, False)
    """
    return source in PLANNED_SOURCES or (not cut and source not in APART_SOURCES)


class Padding(Row, kw_only=True, tag="padding"):
    """One cause of padding in one field of one batch. The causes of a (batch_id, field) sum exactly to
    ``rectangle_tokens − valid_tokens``; a batch without padding has one row with cause "none" and 0 tokens.
    """

    batch_id: int
    source: str  #: the hook point that formed the batch
    field: str
    cause: str  #: "longest_row", "fixed_width", "rounding", "filler_rows", "sequence_parallel", "none" …
    tokens: int
    bytes: int
    rectangle_tokens: int
    valid_tokens: int
    rows: int = 0
    width_tokens: int = 0
    decision: str = ""  #: what a codec did with the field: "jagged", "padded", "rectangular", "fallback", "object" …
    reason: str = ""  #: why it decided so, or who imposed the width
    stripped_tokens: int = 0  #: padding that was there before and was taken off
    stripped_bytes: int = 0


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
    turns: int | None = None
    tools: int | None = None  #: calls of tools in the conversation
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
    has_error: bool | None = None  #: whether its rollout failed; None where nobody told
    masked: bool | None = None  #: whether the loss counts none of its tokens
    trainable: bool | None = None  #: whether it reaches the loss: it isn't dropped, and the loss counts a token of it
    dropped: str = ""  #: why it was never trained: "truncated", "stale", "filtered", "failed", or another word
    passes: int | None = None  #: how often it was trained in this step; None where nobody told
    micro_batches: list[int] = []  #: of each pass the index of its micro-batch, −1 where that isn't known
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
    prompt_ids: list[int] = []
    response_ids: list[int] = []


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
    replica: str = ""  #: its name; "" where nobody told
    samples: int
    timed: int = 0  #: of these, with begin and end of its own
    together: bool = False  #: begin and end are those of the whole batch: when each answer ended isn't known
    begin_ns: int | None = None  #: of the first request, monotonic
    end_ns: int | None = None  #: of the last one that ended
    median_ns: int | None = None  #: from request to end
    ninth_decile_ns: int | None = None  #: likewise: 90 % took no longer
    longest_ns: int | None = None
    requests_begin_ns: list[int] = []
    requests_end_ns: list[int] = []
    trainer_version: int | None = None  #: of the weights that the trainer has as it trains these samples
    weight_versions: list[int] = []  #: of the weights that sampled, each once
    version_samples: list[int] = []  #: how many samples of each
    compared_tokens: int | None = None  #: None where nobody told both log-probabilities
    minus_log_ratio_sum: float = 0.0  #: of −log r
    k3_sum: float = 0.0  #: of r − 1 − log r
    ratio_sum: float = 0.0  #: of r
    ratio_squares_sum: float = 0.0  #: of r²
    below_tokens: int = 0  #: with r below 0.5
    above_tokens: int = 0  #: with r above 2


class TokenFate(Row, kw_only=True, tag="token_fates"):
    """What became of the sampled tokens of one told batch: one row a fate, "carried" always among them.

    The tokens of a ``(process, batch_id)`` sum exactly to its ``batch_tokens``, whatever was left out of ``samples``.
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
    kept_samples: int  #: that have a row in ``samples``
    kept_blocks: int = 0  #: that have one in ``token_blocks``
    equal_tokens: int | None = None  #: of this fate, in groups whose rewards are all equal; None without groups
    loss_terms: list[str] = []  #: what else the loss has, such as "KL": its gradient flows without advantage, too


#: What becomes of a sampled token: the first that applies. "clip_unknown" has reached the loss with an advantage, and
#: nobody told whether it was clipped; "unknown" is what nobody told.
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
    changed_rows: list[int] = []  #: the places of changed answers in the batch, the first 64
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


class Call(Row, kw_only=True, tag="calls"):
    """One call of an observed function, or one scope (``point`` is then "scope.<kind>")."""

    sampled: ClassVar[bool] = True

    point: str
    name: str = ""
    begin_ns: int = 0
    duration_ns: int = 0  #: host time
    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    keys_added: list[str] = []
    keys_removed: list[str] = []
    error: str | None = None  #: "ValueError: …" when it raised


class Reduction(Row, kw_only=True, tag="reductions"):
    """How one metric of one ``reduce_metrics`` call was reduced, and from what."""

    key: str
    reducer: str  #: "mean", "max", "min", "sum", "weighted_mean"
    chosen_by: str  #: "name" (the documented substring rule), "type" (a Metric) or "weights" (they were given)
    count: int
    smallest: float | None = None
    largest: float | None = None
    nan_count: int = 0
    value: float | None = None  #: None where it isn't a number; NaN is a number
    nan_at: int | None = None  #: place of the first NaN among the values, from 0; None without one, or without order
    outlier_at: int | None = None  #: place of the value with the largest magnitude, where there are at least three
    outlier_share_ratio: float | None = None  #: that magnitude ÷ the sum of all magnitudes
    total: float | None = None  #: sum of the values that aren't NaN
    last: float | None = None  #: the last of the values; None without order
    #: What the values that aren't NaN stand for, and their means by it; None where it isn't known of each of them.
    tokens: float | None = None
    token_mean: float | None = None
    sequences: float | None = None
    sequence_mean: float | None = None
    weights_from: str | None = None  #: "scope" (the micro-batch that they were collected in) or "given" (with them)


class Scalar(Row, kw_only=True, tag="scalars"):
    """One value of one metric, as it was logged."""

    key: str
    value: float  #: NaN and infinities included
    source: str = "user"  #: "user" (through Tracking) or "probe" (the session's own)


class Incident(Row, kw_only=True, tag="incidents"):
    """Something went wrong with the observing: a failed listener, dropped rows, a backend that does not answer."""

    kind: str  #: "listener", "dropped_rows", "backend", "writer", "limits" …
    where: str  #: hook point, backend name …
    message: str
    traceback: str | None = None
    count: int = 1
    switched_off: bool = False


class Failure(Row, kw_only=True, tag="failures"):
    """Something went wrong with the training: an exception left a micro-batch, a phase, a watched function or a step,
    or ended the process. The stamp is that of the innermost scope that it left, with its micro-batch.

    It is written at once, and again as it leaves more: of the rows of one ``(process, exception_id)`` the one with the
    largest ``revision`` counts, and says what the others said. ``run.failures()`` has it alone.
    """

    exception_id: int  #: unique in the process; from 1
    revision: int = 0
    kind: str = "failure"  #: or "interrupted", by Ctrl-C
    #: what it has left so far: "micro_batch", "phase" (or a watched function), "step", "thread" (it ended
    #: one) or "process" (it ended that, or the recording in it)
    outermost: str
    caught: bool | None = None  #: whether somebody has caught it; None while that isn't known
    scope_kind: str = ""  #: of the innermost scope that it left
    type: str  #: qualified, such as "torch.OutOfMemoryError"
    message: str = ""  #: up to 2,000 characters
    traceback: str = ""  #: up to 20,000 characters, from its middle where it is longer
    causes: list[str] = []  #: "type: message" of what it came from, the nearest first
    out_of_memory: bool = False  #: of a device, also where that is among its causes
    lengths: list[int] = []  #: tokens of each sequence of the micro-batch
    fields: str = "{}"  #: of the micro-batch, as JSON: by key its shape, dtype, bytes and device
    device: str = ""
    source: str = ""  #: as of memory
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    non_torch_bytes: int | None = None
    device_total_bytes: int | None = None
    phases: str = "{}"  #: as JSON: by phase of this process so far, floor_bytes at its last begin and peak_bytes
    batch_path: str = ""  #: the micro-batch itself, below the run directory; "" unless it was asked for
    snapshot_path: str = ""  #: torch's memory snapshot, likewise


class Stack(Row, kw_only=True, tag="stacks"):
    """A scope is open for much longer than ever before: where the training thread is in the code."""

    open_ns: int  #: how long the scope has been open
    threshold_ns: int  #: beyond which it counted as overdue
    longest_ns: int | None = None  #: the longest that a scope of this name took in this process; None without one
    kind: str = ""  #: of the scope
    stack: str = ""  #: the innermost line last, up to 20,000 characters
    innermost: str = ""  #: its last line, as "file:line function"
    thread: str = ""
    seen: bool = True  #: False where the thread couldn't be looked at
    #: The oldest collective of the process that hadn't ended, as PyTorch's flight recorder names it; "" where there was
    #: none, or none is recorded.
    collective: str = ""
    collective_group: str = ""  #: its process group: the description, else the name
    collective_number: int | None = None  #: which of the group's it is, from 1; None from rank to rank
    collective_sizes: str = ""  #: of what goes in, such as "8x3, 4"
    collective_ns: int | None = None  #: how long it had been open


ROW_TYPES: Final[tuple[type[Row], ...]] = (
    Process,
    Memory,
    HostMemory,
    MicroBatch,
    Partition,
    Padding,
    Sample,
    TokenBlock,
    Rollout,
    TokenFate,
    TokenIdentity,
    GroupBaseline,
    Call,
    Reduction,
    Scalar,
    Incident,
    Failure,
    Stack,
)

#: Row type by table name, as in ``run.sql("select * from micro_batches")``.
TABLES: Final[dict[str, type[Row]]] = {str(kind.__struct_config__.tag): kind for kind in ROW_TYPES}


class Deferred:
    """Rows that don't exist yet. A recorder returns one to move work off the training thread.

    Args:
        build: Makes the rows; called once, in the session's writer thread, inside ``hooks.silenced()``.
        ready: Tells whether ``build`` can be called without waiting (such as a CUDA event's ``query``); polled by the
            writer thread. None means at once.

    It must not keep large tensors alive: that would move the very memory peak that is being measured.

    Attributes:
        partial: Whether ``build`` can be called before it is ready, and then leaves out what isn't known yet. Where the
            run closes meanwhile, such rows are written all the same.
    """

    __slots__ = ("build", "ready")

    partial: ClassVar[bool] = False

    def __init__(self, build: Callable[[], Iterable[Row]], ready: Callable[[], bool] | None = None) -> None:
        self.build = build
        self.ready = ready


class Later(msgspec.Struct, gc=False):
    """A :class:`Deferred` that is one object: its kinds have what their rows are made of in fields, and :meth:`build`.

    Garbage collection doesn't follow it, so that those which wait start none: nothing in a field may refer to it.
    """

    ready: ClassVar[None] = None
    partial: ClassVar[bool] = False

    def build(self) -> Iterable[Row]:
        """The rows; called once, in the session's writer thread."""
        raise NotImplementedError


#: Rows that don't exist yet.
Unbuilt = Deferred | Later


def place_of_process(process: str) -> str:
    """The place that a process has or had in its attempt: its name without the number of those who had it before.

    >>> place_of_process("rank-00003.1"), place_of_process("driver")
    ('rank-00003', 'driver')
    """
    return process.partition(".")[0]


def who(rank: int | None, process: str) -> str:
    """What a process is shown as.

    Args:
        rank: Of the process, None where it has none.
        process: What it is called in the run.

    Returns:
        Its rank; where it has none, the place that it has by its name.

    >>> who(3, "rank-00003.1"), who(None, "driver.1"), who(0, "driver")
    ('rank 3', 'driver', 'rank 0')
    """
    return place_of_process(process) if rank is None else f"rank {rank}"


def stamp(row: Row, scope: Any, *, rank: int | None, time_ns: int, process: str = "", attempt: int = 1) -> Row:
    """:func:`stamp_all` of one row.

    Args:
        row: Changed in place and returned.
        scope: A ``probe.hooks.Scope``, duck-typed so that this module imports nothing.
        rank: The rank of this process.
        time_ns: Used where the row has none.
        process: The name of this process, unique in the run.
        attempt: The launch of the job that this process belongs to.

    Returns:
        The row.
    """
    stamp_all((row,), scope, rank=rank, time_ns=time_ns, process=process, attempt=attempt)
    return row


def stamp_all(
    rows: Iterable[Row], scope: Any, *, rank: int | None, time_ns: int, process: str = "", attempt: int = 1
) -> None:
    """Write into ``rows`` where and when they happened. What the recorder has set itself stays.

    Args:
        rows: Of one scope and moment; changed in place.
        scope: A ``probe.hooks.Scope``, duck-typed so that this module imports nothing.
        rank: The rank of this process.
        time_ns: Used where a row has none.
        process: The name of this process, unique in the run.
        attempt: The launch of the job that this process belongs to.
    """
    step, role, phase, micro_batch = scope.step, scope.role, scope.phase, scope.micro_batch
    scope_id, path = scope.id, scope.path
    for row in rows:
        row.attempt = attempt
        row.process = process
        row.rank = rank
        if not row.time_ns:
            row.time_ns = time_ns
        if row.step is None:
            row.step = step
        if row.role is None:
            row.role = role
        if row.phase is None:
            row.phase = phase
        if row.micro_batch is None:
            row.micro_batch = micro_batch
        if not row.scope_id:
            row.scope_id = scope_id
            row.scope = path
