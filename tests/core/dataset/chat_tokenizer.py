"""Real tokenizers and processors of transformers, built from a word list and a config: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.feature_extraction_utils import BatchFeature
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>", "<image>", "<video>"]
WORDS = [*SPECIAL, "user", "assistant", "system", "think", ":", *(f"w{number}" for number in range(100))]
IDS = {word: number for number, word in enumerate(WORDS)}

#: One word a token. Parts of a message are joined; a role outside the three is an error of the template itself.
TEMPLATE = """<bos> {% for message in messages %}
{%- if message.role not in ('system', 'user', 'assistant') %}
{{- raise_exception('unknown role ' + message.role) }}{% endif %}
{{- message.role }} : {% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'text' %}{{ part.text }}{% else %} <{{ part.type }}> {% endif %}{% endfor %}{% endif %} {% endfor %}
{%- if add_generation_prompt %}assistant :{% endif %}{% if thinking %} think{% endif %}"""


def chat_tokenizer(**changes: Any) -> PreTrainedTokenizerFast:
    """Puts ``<bos>`` in front on its own, as Llama's does, besides the one in the template."""
    inner = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", IDS["<bos>"])])
    given: dict[str, Any] = {
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "extra_special_tokens": ["<image>", "<video>"],
        "chat_template": TEMPLATE,
    }
    return PreTrainedTokenizerFast(tokenizer_object=inner, **given | changes)


def ids(text: str) -> list[int]:
    return [IDS[word] for word in text.split()]


def llava_processor(tokenizer: PreTrainedTokenizerFast | None = None) -> LlavaProcessor:
    """Pictures of 8x8 in patches of 4x4: each ``<image>`` becomes 4 tokens."""
    images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    return LlavaProcessor(
        images,
        tokenizer or chat_tokenizer(),
        patch_size=4,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    )


class FramesProcessor:
    """Takes videos, which those of transformers do with torchvision alone: Qwen2-VL's image processor, frame by frame.

    Each 2x2 block of patches of a frame becomes one token. Like Qwen2-VL's it tells the kind of each token, and has
    no template of its own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.image_processor = Qwen2VLImageProcessorPil(
            patch_size=4, merge_size=2, temporal_patch_size=1, size={"shortest_edge": 64, "longest_edge": 4096}
        )

    def __call__(
        self,
        text: list[str],
        images: Any = None,
        videos: list[Any] | None = None,
        return_tensors: str | None = None,
        **options: Any,
    ) -> BatchFeature:
        made: dict[str, Any] = {}
        if images is not None:
            made |= self.image_processor(images=images, return_tensors="pt")
        if videos is not None:
            assert all(isinstance(video, np.ndarray) and video.ndim == 4 for video in videos)
            grids = [self.image_processor(images=list(video), return_tensors="pt") for video in videos]
            made["pixel_values_videos"] = [grid["pixel_values"] for grid in grids]
            made["video_grid_thw"] = _stack([grid["image_grid_thw"] for grid in grids])
        words = text[0].split()
        counts = {
            "<image>": iter(made.get("image_grid_thw", [])),
            "<video>": iter(made.get("video_grid_thw", [])),
        }
        words = [w for word in words for w in [word] * (int(next(counts[word]).prod()) // 4 if word in counts else 1)]
        encoded = self.tokenizer([" ".join(words)], return_tensors=return_tensors, **options)
        kinds = [[["<image>", "<video>"].index(word) + 1 if word in counts else 0 for word in words]]
        made["mm_token_type_ids"] = encoded["input_ids"].new_tensor(kinds)
        return BatchFeature({**encoded, **made})


def _stack(grids: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([torch.stack([grid[:, 0].sum(), *grid[0, 1:]]) for grid in grids])
