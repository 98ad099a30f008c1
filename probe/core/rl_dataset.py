"""Prompts for reinforcement learning: files of chats become rows of left-padded tokens."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
from torch.utils.data import Dataset

from probe._check import whole_number
from probe.core.columns.row_index import row_number
from probe.core.dataset.collate import collate_fn
from probe.core.dataset.config import DatasetConfig
from probe.core.dataset.files import Files, file_list, measured, read_files, why_not_sent
from probe.core.dataset.prompts import (
    Prompt,
    PromptEncoder,
    check_length,
    cut_and_padded,
    position_ids,
    without_none,
)
from probe.errors import InputError, InputTypeError, ProbeError
from probe.guard import attempt, raised_as
from probe.hooks import emit, point

__all__ = ["DatasetConfig", "RLHFDataset", "collate_fn"]

_log = logging.getLogger(__name__)

#: Prompts were measured and the overlong ones left out. ``lengths_tokens`` belongs to ``rows``, the numbers of rows in
#: the files; both are complete, the dropped rows included.
FILTER: Final = point(
    "rl_dataset.filter",
    "overlong prompts were left out; carries kept, dropped, limit_tokens, lengths_tokens, rows, files",
)

#: Rows for which another process pays off, where the config doesn't say how many there are to be.
_ROWS_OF_A_WORKER: Final = 4096

#: What a row gets from the dataset, so that no column may have these names.
_MADE: Final = ("input_ids", "attention_mask", "position_ids", "raw_prompt_ids")

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class RLHFDataset(Dataset[dict[str, Any]]):
    """Rows of parquet, JSON and JSONL files with their prompts tokenized, for a ``DataLoader`` with :func:`collate_fn`.

    A row has every column of the files but the prompt and the media, and besides:

    * ``input_ids``, ``attention_mask``, ``position_ids``: (max_prompt_length,), long, padded on the left. With a
      processor that has ``get_rope_index``, ``position_ids`` are (3, max_prompt_length), see
      :func:`probe.core.dataset.prompts.position_ids`; other processors' models make their own.
    * ``raw_prompt_ids``: list of the tokens without padding, media placeholders as in the text.
    * ``index``, ``tools_kwargs``, ``interaction_kwargs``: of the column ``extra_info`` where it has them, else the
      column of that name, else the number of the row in the files, and empty dicts.
    * ``raw_prompt``, the messages, with ``return_raw_chat``; ``full_prompts``, the templated text, with
      ``return_full_prompt``.
    * with a processor ``multi_modal_data`` (``"image"``: PIL images, ``"video"``: arrays (T, H, W, 3)) and
      ``multi_modal_inputs`` (what the processor made; values for each token are padded like ``input_ids``).

    ``<image>`` and ``<video>`` in the messages say where the media of the row go. A prompt with media is never cut.

    Pickled, it is small: it names its files and which rows it kept, and reads them again when they are asked for,
    without measuring again. Remote files are copied to ``cache_dir`` first; nothing is asked of a model hub.

    Args:
        data_files: Path or URL of a .parquet, .json or .jsonl file, or several.
        tokenizer: A tokenizer of ``transformers``, with a chat template and a padding token.
        config: Options, see :class:`DatasetConfig`; other entries are not looked at.
        processor: A processor of ``transformers``, for images and videos.
        max_samples: Use the first so many rows (of the shuffled order with ``shuffle``); overlong ones among them are
            left out afterwards. −1 means all.

    Attributes:
        config: The :class:`DatasetConfig`.
        data_files: The files as they were given, a list.
        dataframe: The rows, a ``datasets.Dataset``.
        rows: Numbers of the rows in the files, from 0 over all files.
        dropped: How many rows were left out as overlong.

    Raises:
        InputError: An argument, a file or a row can't be used; a failing template names file and row.
    """

    def __init__(
        self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ) -> None:
        self.config = DatasetConfig.from_config(config)
        self.data_files = file_list(data_files)
        self.tokenizer = tokenizer
        self.processor = processor
        self.max_samples = _sample_limit(max_samples)
        self._pad_id = _pad_id(tokenizer)
        self._encoder = PromptEncoder(tokenizer, processor, self.config)
        self._kept: tuple[list[int], bytes] | None = None
        self._loaded: tuple[Files, Any, Numbers] | None = None
        self._warned = False
        self.dropped = 0
        self._load()

    def __len__(self) -> int:
        return len(self._tables()[2])

    def __getitem__(self, item: int) -> dict[str, Any]:
        """One row; negative numbers count from the end.

        Raises:
            InputTypeError: It is not one number.
            CapacityError: The prompt is too long and may not be cut.
            InputError: The row can't be used.
            RowIndexError: The number is outside the dataset.
        """
        number = row_number(item, len(self))
        if number is None:
            raise InputTypeError(f"item: got {type(item).__name__}, expected one row number")
        files, frame, rows = self._tables()
        row = files.plain(dict(frame[number]))
        with _located(files, int(rows[number])):
            return self._made(row, int(rows[number]))

    @property
    def dataframe(self) -> Any:
        """The rows as they are in the files, a ``datasets.Dataset`` in this dataset's order.

        A column of a JSON file whose values have no type in common holds JSON text here; rows have the values.
        """
        return self._tables()[1]

    @property
    def rows(self) -> Numbers:
        """Numbers of the rows in the files, counted over all files."""
        return self._tables()[2]

    def resume_dataset_state(self) -> None:
        """Read the files anew, as after a checkpoint; the same rows are kept, in the same order.

        Raises:
            InputError: The files have other numbers of rows than those that were measured.
        """
        self._load()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_encoder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._encoder = PromptEncoder(self.tokenizer, self.processor, self.config)

    # --------------------------------------------------------------------------------------------------------- loading

    def _tables(self) -> tuple[Files, Any, Numbers]:
        if self._loaded is None:
            self._load()
        if self._loaded is None:  # _load has raised; this is for the type checker
            raise InputError("data_files: not loaded")
        return self._loaded

    def _load(self) -> None:
        files = read_files(self.data_files, self.config)
        self._check_columns(files.table.column_names)
        rows = self._chosen(len(files.table))
        if self._kept is None:
            keep = self._fitting(files, rows)
            self._kept = files.counts, _packed(keep)
            self.dropped = len(rows) - int(keep.sum())
        elif self._kept[0] != files.counts:
            raise InputError(
                f"data_files: {', '.join(files.names)} have {files.counts} rows, expected {self._kept[0]} as when the "
                "prompts were measured; make a new dataset"
            )
        rows = rows[_unpacked(self._kept[1], len(rows))]
        self._loaded = files, files.table.select(rows), rows

    def _check_columns(self, columns: Sequence[str]) -> None:
        made = dict.fromkeys(_MADE)
        if self.config.return_raw_chat:
            made["raw_prompt"] = None
        if self.config.return_full_prompt:
            made["full_prompts"] = None
        if self.processor is not None:
            made |= dict.fromkeys(("multi_modal_data", "multi_modal_inputs"))
        if taken := [name for name in columns if name in made and name != self.config.prompt_key]:
            names = ", ".join(taken)
            raise InputError(f"data_files: got the columns {names}, whose names the dataset uses itself; rename them")

    def _chosen(self, count: int) -> Numbers:
        """Rows of the files that ``shuffle`` and ``max_samples`` choose, in order."""
        rows = np.arange(count, dtype=np.int64)
        if self.config.shuffle:
            rows = np.random.default_rng(self.config.seed or 0).permutation(count).astype(np.int64)
        return rows if self.max_samples < 0 else rows[: self.max_samples]

    def _fitting(self, files: Files, rows: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of ``rows`` have a prompt that fits; tells :data:`FILTER`."""
        limit = self.config.max_prompt_length
        if not self.config.filter_overlong_prompts or not len(rows):
            return np.ones(len(rows), dtype=bool)
        names = (self.config.prompt_key, self.config.image_key, self.config.video_key)
        table = files.table.select_columns([name for name in files.table.column_names if name in names])
        table = table if np.array_equal(rows, np.arange(len(table))) else table.select(rows)

        def measure(batch: list[dict[str, Any]], numbers: list[int]) -> list[int]:
            return self._lengths(files, batch, [int(rows[number]) for number in numbers])

        lengths = measured(table, measure, self._workers(len(rows)))
        keep = np.asarray(lengths) <= limit
        kept, dropped = int(keep.sum()), int((~keep).sum())
        level = logging.WARNING if dropped else logging.INFO
        _log.log(level, "%d of %d prompts are longer than %d tokens and left out", dropped, len(rows), limit)
        if FILTER.listeners:
            told = {"lengths_tokens": lengths, "rows": rows.tolist(), "files": list(files.names)}
            emit(FILTER, kept=kept, dropped=dropped, limit_tokens=limit, **told)
        return keep

    def _lengths(self, files: Files, batch: list[dict[str, Any]], numbers: list[int]) -> list[int]:
        """Tokens of the prompt of each row; ``numbers`` are those in the files."""
        texts: list[str] = []
        lengths: list[int] = []
        for row, number in zip(batch, numbers, strict=True):
            with _located(files, number):
                if self.processor is None:
                    texts.append(self._encoder.text(files.plain(row)))
                else:
                    lengths.append(len(self._encoder.encode(files.plain(row)).tokens))
        lengths = lengths or self._counted(files, texts, numbers)
        for length, number in zip(lengths, numbers, strict=True):
            with _located(files, number):
                check_length(length)
        return lengths

    def _counted(self, files: Files, texts: list[str], numbers: list[int]) -> list[int]:
        def name_row(error: Exception) -> NoReturn:
            """Whatever a tokenizer may raise: one by one, the text that it fails on names its row."""
            for text, number in zip(texts, numbers, strict=True):
                with _located(files, number):
                    self._encoder.count([text])
            raise error

        return attempt(lambda: self._encoder.count(texts), name_row)

    def _workers(self, rows: int) -> int:
        """How many processes measure: this one alone where the tokenizer can't be sent to others."""
        given = self.config.filter_overlong_prompts_workers
        wanted = min((os.cpu_count() or 1) // 4, rows // _ROWS_OF_A_WORKER) if given is None else min(given, rows)
        if wanted <= 1:
            return 1
        why = why_not_sent((self.tokenizer, self.processor))
        if why:
            _log.warning(
                "prompts are measured in this process alone, not in %d processes: the tokenizer or processor %s",
                wanted,
                why,
            )
        return 1 if why else wanted

    # ------------------------------------------------------------------------------------------------------------ rows

    def _made(self, row: dict[str, Any], number: int) -> dict[str, Any]:
        prompt = self._encoder.encode(row)
        tensors, prompt = cut_and_padded(prompt, self.config, self._pad_id)
        row.pop(self.config.prompt_key)
        row |= tensors
        row["position_ids"] = position_ids(tensors, prompt.inputs, self.processor)
        row["raw_prompt_ids"] = prompt.raw_tokens
        if self.config.return_raw_chat:
            row["raw_prompt"] = prompt.messages
        if self.config.return_full_prompt:
            row["full_prompts"] = prompt.text
        if self.processor is not None:
            self._add_media(row, prompt)
        self._add_extras(row, number)
        return row

    def _add_media(self, row: dict[str, Any], prompt: Prompt) -> None:
        row.pop(self.config.image_key, None)
        row.pop(self.config.video_key, None)
        row["multi_modal_data"] = prompt.media
        row["multi_modal_inputs"] = prompt.inputs

    def _add_extras(self, row: dict[str, Any], number: int) -> None:
        extra = row.get("extra_info")
        extra = extra if isinstance(extra, dict) else {}
        defaults: dict[str, Any] = {"index": number, "tools_kwargs": {}, "interaction_kwargs": {}}
        for name, default in defaults.items():
            found = next((place[name] for place in (extra, row) if place.get(name) is not None), default)
            row[name] = without_none(found)
        if (self.config.need_tools_kwargs or extra.get("need_tools_kwargs")) and not row["tools_kwargs"]:
            if not self._warned:  # once: a loader would say it for every row
                _log.warning("tools_kwargs are needed but empty in row %d of data_files (warned once)", number)
            self._warned = True


def _sample_limit(given: Any) -> int:
    limit = whole_number("max_samples", given, expected="a whole number, or -1 for all")
    if limit < -1:
        raise InputError(f"max_samples: got {limit}, expected 0 or more, or -1 for all")
    return limit


def _pad_id(tokenizer: Any) -> int:
    if not callable(tokenizer) or not hasattr(tokenizer, "apply_chat_template"):
        raise InputTypeError(f"tokenizer: got {type(tokenizer).__name__}, expected a tokenizer of transformers")
    pad_id = getattr(tokenizer, "pad_token_id", None)
    if not isinstance(pad_id, int):
        raise InputError("tokenizer: has no padding token; set tokenizer.pad_token, for example to tokenizer.eos_token")
    return pad_id


def _located(files: Files, row: int) -> raised_as:
    """What goes wrong inside is said to have gone wrong in this row of its file."""

    def named(error: Exception) -> InputError:  # of the template, the tokenizer, the processor or PIL
        text = str(error) if isinstance(error, ProbeError) else f"{type(error).__name__}: {error}"
        kind = type(error) if isinstance(error, InputError | InputTypeError) else InputError
        return kind(f"{files.origin(row)}: {text}")

    return raised_as(named, but=())


def _packed(keep: np.ndarray[Any, np.dtype[np.bool_]]) -> bytes:
    return zlib.compress(np.packbits(keep).tobytes())


def _unpacked(packed: bytes, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    bits = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
    return np.unpackbits(bits, count=count).astype(bool)
