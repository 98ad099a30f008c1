"""What a batch is made of, where its tokens stand, and values of a few rows: true, and without copying it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probe.core.batched_data_dict import BatchedDataDict
from probe.core.columns.jagged import build_jagged
from probe.core.protocol import DataProto
from probe.errors import InputError, InputTypeError
from probe.inspection.contents import members, schema_of
from probe.inspection.plain_text import one_line, plain
from probe.inspection.token_map import KINDS, counted, histogram, lengths_of, runs, token_map
from probe.inspection.values import decoded, row_range, row_text, rows_of_column, tensors_of


class Allocations(TorchDispatchMode):
    """Bytes of every storage that an operation makes: of all of them, and of the largest."""

    def __init__(self, *known):
        super().__init__()
        self._known = {one.untyped_storage().data_ptr() for one in known}
        self._alive = []
        self.total = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self._known:
                self._known.add(one.untyped_storage().data_ptr())
                self._alive.append(one)  # its address isn't given to another
                self.total += one.untyped_storage().nbytes()
                self.largest = max(self.largest, one.untyped_storage().nbytes())
        return made


class Travels(TorchFunctionMode):
    """Elements of everything that would leave a device, were the tensors on one: each such call waits for it."""

    def __init__(self):
        super().__init__()
        self.elements = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("cpu", "to", "tolist", "item", "numpy", "__bool__", "__int__", "nonzero"):
            self.elements.append(args[0].numel() if not args[0].is_nested else args[0]._values.numel())
        return func(*args, **(kwargs or {}))


class Raising:
    def __repr__(self):
        raise RuntimeError("no")

    def __sizeof__(self):
        raise RuntimeError("no")


class Huge:
    def __repr__(self):
        return "x" * 10_000_000


def jagged(lengths, dtype=torch.int64):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return build_jagged(torch.arange(sum(lengths), dtype=dtype), offsets, min(lengths), max(lengths))


def kinds(found):
    letters = dict(zip(KINDS, ".prmv", strict=True))
    return ["".join(letters[KINDS[code]] for code in row) for row in found.rows]


def columns(batch):
    return {one.key: one for one in schema_of(batch).columns}


# ---- columns


def test_every_kind_of_batch_is_taken_apart():
    ids = torch.zeros(2, 3, dtype=torch.int32)
    proto = DataProto.from_dict({"ids": ids}, {"uid": ["a", "b"]}, {"t": 0.5})
    table = TensorDict({"ids": ids, "inner": TensorDict({"x": ids}, [2])}, [2])
    table["said"] = NonTensorStack("x", "y")
    table["one"] = NonTensorData("k", batch_size=[2])
    for batch, keys in (
        (proto, ["ids", "uid"]),
        (table, ["ids", "inner.x", "said", "one"]),
        (BatchedDataDict({"ids": ids, "text": ["a", "b"]}), ["ids", "text"]),
        ({"ids": ids, 7: np.zeros(2)}, ["ids", "7"]),
    ):
        found = schema_of(batch)
        assert [one.key for one in found.columns] == keys
        assert found.rows == 2
        assert found.kind == type(batch).__name__
    assert [one.section for one in schema_of(proto).columns] == ["batch", "non_tensor_batch"]
    assert schema_of(proto).meta == (("t", "float", "0.5"),)
    assert columns(proto)["ids"][2:8] == ("tensor", 2, "(2, 3)", "int32", "cpu", 24)
    assert columns(table)["said"].kind == "objects"


@pytest.mark.parametrize("odd", [None, 3, [torch.zeros(2)], torch.zeros(2)])
def test_what_is_no_batch_is_said(odd):
    with pytest.raises(InputTypeError, match="batch: got"):
        schema_of(odd)


def test_an_empty_batch_and_rows_that_differ():
    assert schema_of({})[:5] == ("dict", None, (), (), 0)
    assert schema_of({"a": torch.zeros(2), "b": torch.zeros(3)}).rows is None
    assert schema_of(DataProto()).columns == ()


def test_a_lazy_stack_is_not_stacked():
    parts = [TensorDict({"a": torch.zeros(size), "n": NonTensorData(str(size))}, []) for size in (3, 4)]
    stack = lazy_stack(parts)
    with Allocations(*(part["a"] for part in parts)) as seen:
        found = columns(stack)["a"]
        rows = rows_of_column(dict(tensors_of(members(stack).fields))["a"], 1, 2)
    assert seen.total == 0
    assert found[2:8] == ("stacked", 2, "2 × 2 shapes", "float32", "cpu", 28)
    assert rows[0].data_ptr() == parts[1]["a"].data_ptr()


def test_shared_memory_and_views_are_named():
    ids = torch.zeros(4, 6)
    offsets = torch.tensor([0, 2, 5])
    one, two = (build_jagged(torch.zeros(5), offsets, 2, 3) for _ in range(2))
    batch = {
        "input_ids": ids,
        "responses": ids[:, 4:],
        "numpy": ids.numpy(),
        "apart": torch.zeros(4, 6),
        "part": torch.zeros(100)[:2],
        "wide": torch.zeros(1).expand(8),
        "one": one,
        "two": two,
    }
    found = schema_of(batch)
    assert [(group.name, group.members) for group in found.memories] != []
    groups = {group.members: group.bytes for group in found.memories}
    assert groups[("input_ids", "numpy", "responses")] == 96
    assert groups[("one (offsets)", "two (offsets)")] == 24
    assert len(groups) == 2
    by_key = columns(batch)
    assert by_key["input_ids"].memory == by_key["responses"].memory == by_key["numpy"].memory != ""
    assert by_key["apart"].memory == by_key["one"].memory == ""
    assert "view of 96 B" in by_key["responses"].notes
    assert "not contiguous" in by_key["responses"].notes
    assert "view of 400 B" in by_key["part"].notes
    assert "expanded: its entries share memory" in by_key["wide"].notes
    assert found.held_bytes == 96 + 96 + 400 + 4 + 20 + 20 + 24


def test_numpy_views_share_with_their_base():
    base = np.zeros((4, 6))
    batch = {"a": base[:, ::-2], "b": base[1:], "c": np.zeros((4, 6))}
    (group,) = schema_of(batch).memories
    assert group.members == ("a", "b")
    assert group.bytes == base.nbytes


# torch says of both that they may change, when the first one is made.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
def test_odd_columns_never_raise():
    objects = np.array([Raising(), Huge()], dtype=object)
    batch = {
        "objects": objects,
        "meta": torch.zeros(2, 3, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "csr": torch.eye(2).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        "number": 3,
        "grad": torch.zeros(2, requires_grad=True),
        "empty": torch.zeros(2, 0),
        "scalar": torch.tensor(1.0),
        "structured": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    }
    found = columns(batch)
    assert found["objects"].bytes is None
    assert found["sparse"].bytes is None
    assert found["nested"].kind == "nested"
    assert "requires grad" in found["grad"].notes
    assert schema_of(batch).unknown == 3
    (odd,) = schema_of(DataProto(meta_info={"odd": Raising()})).meta
    assert odd[:2] == ("odd", "Raising")
    assert "Raising" in odd[2]


def test_text_of_odd_values_is_short_and_holds():
    assert len(plain(Huge())) <= 80
    assert "Raising" in plain(Raising())
    assert plain("\ud800\n") == r"'\ud800\n'"
    assert one_line("a\ud800\nb") == "a? b"
    assert len(plain(list(range(10**6)))) <= 80
    assert plain([[[[[[1]]]]]]) == "[[[[...]]]]"


# ---- nothing is copied


def test_looking_copies_nothing_and_counting_takes_a_block():
    mask = (torch.arange(1024)[None] < torch.randint(1, 1024, (4096, 1))).long()
    ids = torch.zeros(4096, 1024, dtype=torch.long)
    batch = DataProto.from_dict({"input_ids": ids, "attention_mask": mask, "responses": ids[:, 512:]})
    with Allocations(ids, mask) as seen:
        schema_of(batch)
    assert seen.total == 0
    tensors = tensors_of(members(batch).fields)
    with Allocations(ids, mask) as seen:
        found = token_map(tensors, 8, 12)
        rows_of_column(ids, 5, 6, slice(0, 10))
    assert len(found.rows) == 4
    assert seen.total == 0
    with Allocations(ids, mask) as seen:
        lengths = lengths_of(tensors)
    assert seen.largest <= 1 << 20  # a block of booleans, beside 32 MiB of mask
    assert lengths["tokens"] == mask.sum(1).tolist()
    assert lengths["response"] == mask[:, 512:].sum(1).tolist()


def test_only_the_rows_asked_for_would_leave_a_device():
    ids = torch.zeros(512, 64, dtype=torch.long)
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "responses": ids[:, 32:],
        "long": jagged([9] * 512),
    }
    with Travels() as seen:
        schema_of(batch)
    assert seen.elements == []
    tensors = tensors_of(members(batch).fields)
    with Travels() as seen:
        assert len(token_map(tensors, 3, 5).rows) == 2
        rows_of_column(ids, 3, 5, slice(0, 4))
        rows_of_column(batch["long"], 3, 5)
    assert max(seen.elements) == 2 * 64
    with Travels() as seen:
        lengths_of(tensors)
    assert max(seen.elements) == 512  # a number a row


def test_values_of_a_row_are_views_of_the_batch():
    ids = jagged([2, 4, 3])
    rows = rows_of_column(ids, 1, 3)
    assert [row.tolist() for row in rows] == [[2, 3, 4, 5], [6, 7, 8]]
    assert rows[0].data_ptr() == ids._values[2:].data_ptr()
    assert [row.tolist() for row in rows_of_column(ids, 0, 3, slice(1, 3))] == [[1], [3, 4], [7, 8]]


def test_values_of_jagged_rows_with_holes():
    column = build_jagged(torch.arange(10), torch.tensor([0, 4, 8, 10]), 1, 3, lengths=torch.tensor([2, 3, 1]))
    assert [row.tolist() for row in rows_of_column(column, 0, 3)] == [[0, 1], [4, 5, 6], [8]]
    assert rows_of_column(column, 3, 3) == []


# ---- tokens


def test_padded_rows_of_a_trainer():
    mask = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    batch = {"attention_mask": mask, "prompts": torch.zeros(2, 3), "responses": torch.zeros(2, 3)}
    found = token_map(batch, 0, 2)
    assert kinds(found) == [".pprr.", "ppprrr"]
    assert found.source == "attention_mask, responses"
    assert found.counts() == {"pad": 2, "prompt": 5, "response": 5}
    assert found.counts(0) == {"pad": 2, "prompt": 2, "response": 2}
    masked = token_map({**batch, "response_mask": torch.tensor([[1, 0, 0], [1, 0, 1]])}, 0, 2)
    assert kinds(masked) == [".pprm.", "ppprmr"]


def test_only_a_response_mask_tells_its_width():
    batch = {"attention_mask": torch.ones(1, 5), "response_mask": torch.tensor([[1, 0]])}
    assert kinds(token_map(batch, 0, 1)) == ["ppprm"]


def test_right_padded_rows_with_lengths():
    batch = {
        "input_ids": torch.zeros(2, 6, dtype=torch.long),
        "input_lengths": torch.tensor([5, 3]),
        "token_mask": torch.tensor([[0, 0, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0]]),
    }
    found = token_map(batch, 0, 2)
    assert kinds(found) == ["pprmr.", "prr..."]
    assert lengths_of(batch) == {"tokens": [5, 3]}


def test_jagged_rows_have_no_padding():
    batch = {"input_ids": jagged([5, 3]), "responses": jagged([2, 3])}
    assert kinds(token_map(batch, 0, 2)) == ["ppprr", "rrr"]
    batch["response_mask"] = build_jagged(torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0, 2, 5]), 2, 3)
    assert kinds(token_map(batch, 0, 2)) == ["ppprm", "rrm"]
    assert lengths_of(batch) == {"tokens": [5, 3], "response": [2, 3]}
    apart = {"prompts": jagged([1, 2]), "responses": jagged([2, 1])}
    assert kinds(token_map(apart, 0, 2)) == ["prr", "ppr"]


def test_a_jagged_response_beside_a_padded_mask():
    batch = {"attention_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]), "responses": jagged([1, 2])}
    assert kinds(token_map(batch, 0, 2)) == [".ppr.", "prr.."]


def test_what_is_not_told_is_not_guessed():
    plainly = token_map({"attention_mask": torch.tensor([[0, 1]])}, 0, 1)
    assert kinds(plainly) == [".v"]
    assert "nothing tells prompt from response" in plainly.problem
    torn = {"attention_mask": torch.ones(1, 5), "prompts": torch.ones(1, 2), "responses": torch.ones(1, 2)}
    found = token_map(torn, 0, 1)
    assert kinds(found) == ["vvvvv"]
    assert "2 and responses 2 wide don't make up rows 5 wide" in found.problem
    assert token_map({"x": torch.ones(2)}, 0, 2).rows == []
    assert "can't be read" in token_map({"attention_mask": torch.ones(2, 2, device="meta")}, 0, 1).problem
    assert lengths_of({"attention_mask": torch.ones(2, 2, device="meta")}) == {}
    wrong = {**torn, "responses": torch.ones(1, 3), "response_mask": torch.ones(1, 4)}
    assert "fit neither" in token_map(wrong, 0, 1).problem


@settings(deadline=None, max_examples=60)
@given(
    spans=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6),
    rows=st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
def test_every_position_is_counted_once(spans, rows):
    mask = torch.zeros(len(spans), 10, dtype=torch.long)
    for row, (prompt, response) in enumerate(spans):
        mask[row, 5 - prompt : 5 + response] = 1
    batch = {"attention_mask": mask, "responses": torch.zeros(len(spans), 5)}
    start, stop = row_range(slice(*rows), len(spans))
    found = token_map(batch, start, stop)
    counts = found.counts()
    assert counts.get("prompt", 0) == sum(pair[0] for pair in spans[start:stop])
    assert counts.get("response", 0) == sum(pair[1] for pair in spans[start:stop])
    assert sum(counts.values()) == 10 * (stop - start)
    for row in found.rows:
        assert [code for begin, end, code in runs(row) for _ in range(begin, end)] == row.tolist()
    assert counted(mask).tolist() == [sum(pair) for pair in spans]


@settings(deadline=None, max_examples=100)
@given(lengths=st.lists(st.integers(0, 5000), max_size=50), bins=st.integers(1, 30))
def test_a_histogram_holds_every_row(lengths, bins):
    found = histogram(lengths, bins)
    assert sum(found.counts) == len(lengths)
    assert len(found.counts) <= bins
    assert not lengths or found.edges[0] == min(lengths) <= max(lengths) < found.edges[-1]


# ---- rows, texts


def test_rows_that_can_be_asked_for():
    assert row_range(range(1, 3), 5) == (1, 3)
    assert row_range(np.int64(-2), 5) == (3, 4)
    assert row_range((3, 1), 5) == (3, 3)
    for wrong, kind in ((slice(0, 4, 2), InputError), (9, InputError), ("a", InputTypeError), (True, InputTypeError)):
        with pytest.raises(kind, match="rows"):
            row_range(wrong, 5)
    with pytest.raises(InputTypeError):
        row_range(("a", 2), 5)


def test_rows_as_text():
    assert row_text(torch.tensor([1.0, float("inf")], dtype=torch.bfloat16)) == "[1, inf]"
    assert row_text(torch.zeros(3).to(torch.float8_e4m3fn)) == "[0, 0, 0]"
    assert row_text(np.array(["<b>", "c"])) == "['<b>', 'c']"
    assert "Raising" in row_text(Raising())
    assert row_text(torch.zeros(2, 0)) == "(2, 0): []"


def test_a_tokenizer_that_fails_is_said():
    class Bad:
        def decode(self, ids):
            raise KeyError("no such id")

    assert "failed on 2 tokens: KeyError" in decoded(Bad(), [1, 2])


def test_a_long_text_is_cut():
    class Long:
        def decode(self, ids):
            return "ab" * 5000

    assert decoded(Long(), [1]).endswith("… 6,000 more characters")
