"""Images and videos of prompts: each in its place, through a real processor, and none lost or cut."""

from __future__ import annotations

import base64
import io
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from probe.core.dataset.media import load_image, load_video
from probe.core.dataset.prompts import position_ids
from probe.core.protocol import DataProto
from probe.core.rl_dataset import RLHFDataset, collate_fn
from probe.errors import CapacityError, InputError, InputTypeError
from tests.core.dataset import chat_tokenizer as chat

ids = chat.ids
TOKENIZER = chat.chat_tokenizer()
LLAVA = chat.llava_processor(TOKENIZER)
FRAMES = chat.FramesProcessor(TOKENIZER)


def picture(value=0, size=(8, 8)):
    return Image.new("RGB", size, (value, value, value))


def png(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def as_bytes(*values, size=(8, 8)):
    return [{"bytes": png(picture(value, size)), "path": None} for value in values]


def row(text, **more):
    return {"prompt": [{"role": "user", "content": text}], "images": None, "videos": None, **more}


@pytest.fixture
def make(tmp_path):
    """Make a dataset of rows; keyword arguments are its config."""

    def dataset(rows, processor=LLAVA, **config):
        names = dict.fromkeys(name for one in rows for name in one)
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(names) | one for one in rows]), tmp_path / "train.parquet")
        config = {"cache_dir": str(tmp_path / "cache"), "max_prompt_length": 24, **config}
        return RLHFDataset(str(tmp_path / "train.parquet"), TOKENIZER, config, processor)

    return dataset


# -------------------------------------------------------------------------------------------------------------- images


def test_images_go_where_their_placeholders_are(make):
    rows = [row("w1 <image> w2 <image>", images=as_bytes(0, 255))]
    got = make(rows, return_raw_chat=True, return_full_prompt=True)[0]
    places = "<image> " * 4
    tokens = ids(f"<bos> user : w1 {places} w2 {places} assistant :")
    assert got["input_ids"].tolist() == [0] * (24 - len(tokens)) + tokens
    assert got["position_ids"].tolist() == [0] * (24 - len(tokens)) + list(range(len(tokens)))
    assert got["raw_prompt_ids"] == ids("<bos> user : w1 <image> w2 <image> assistant :")  # engines expand themselves
    assert [part["type"] for part in got["raw_prompt"][0]["content"]] == ["text", "image", "text", "image"]
    dark, light = got["multi_modal_data"]["image"]
    assert (dark.getpixel((0, 0)), light.getpixel((0, 0))) == ((0, 0, 0), (255, 255, 255))
    pixels = got["multi_modal_inputs"]["pixel_values"]
    assert pixels.shape == (2, 3, 8, 8)
    assert pixels[0].mean() < 0 < pixels[1].mean()
    assert not {"images", "videos", "prompt"} & got.keys()


def test_rows_with_and_without_images_make_one_batch(make):
    rows = [row("w1"), row("<image> w2", images=as_bytes(9)), row("w3", images=[])]
    dataset = make(rows)
    batch = collate_fn([dataset[number] for number in range(3)])
    data = DataProto.from_single_dict(batch)
    assert [sorted(media) for media in data.non_tensor_batch["multi_modal_data"]] == [[], ["image"], []]
    assert [sorted(inputs) for inputs in data.non_tensor_batch["multi_modal_inputs"]] == [[], ["pixel_values"], []]
    assert data.batch["input_ids"].shape == (3, 24)


def test_a_message_may_hold_its_parts_and_its_images_itself(make):
    empty = {"type": None, "text": None, "image": None}
    content = [
        {**empty, "type": "image", "image": png(picture(255))},
        {**empty, "type": "text", "text": " w1"},
        {**empty, "type": "image"},
    ]
    rows = [{"prompt": [{"role": "user", "content": content}], "images": as_bytes(0)}]
    got = make(rows)[0]
    assert [image.getpixel((0, 0))[0] for image in got["multi_modal_data"]["image"]] == [255, 0]
    assert got["raw_prompt_ids"] == ids("<bos> user : <image> w1 <image> assistant :")


@pytest.mark.parametrize(
    ("text", "images", "message"),
    [
        ("w1 <image>", as_bytes(0, 1), r"row 1 of .*images: got 2, expected 1, one for each <image>"),
        ("w1", as_bytes(0), r"row 1 of .*images: got 1, expected 0,"),
        ("<image> <image>", as_bytes(0), r"row 1 of .*images: got 1, expected 2,"),
        ("<image>", None, r"row 1 of .*images: got 0, expected 1,"),
        ("<image>", [{"bytes": b"nothing", "path": None}], r"row 1 of .*7 bytes can't be decoded"),
    ],
)
def test_an_image_too_many_too_few_or_broken_is_an_error(make, text, images, message):
    with pytest.raises(InputError, match=message):
        make([row("<image>", images=as_bytes(0)), row(text, images=images)])


def test_an_image_that_isnt_there_is_no_model_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "photos/cat", "file://photos/cat"):
        with pytest.raises(FileNotFoundError, match="src: there is nothing at"):
            load_image(name)


def test_a_forgotten_processor_is_an_error(make):
    with pytest.raises(InputError, match=r"row 0 of .*processor: got None.*1 of 'images'"):
        make([row("<image> w1", images=as_bytes(0))], processor=None)
    content = [{"type": "image", "image": png(picture())}]
    with pytest.raises(InputError, match=r"processor: got None.*type 'image'"):
        make([{"prompt": [{"role": "user", "content": content}]}], processor=None)


def test_without_a_processor_other_columns_of_images_are_kept(make):
    got = make([row("w1", images=as_bytes(7))], processor=None)[0]
    assert got["images"] == as_bytes(7)


def test_the_filter_counts_what_the_processor_makes_of_the_images(make):
    rows = [row("<image>", images=as_bytes(0)), row("<image> <image>", images=as_bytes(0, 1)), row("w1")]
    dataset = make(rows, max_prompt_length=9)
    assert (dataset.rows.tolist(), dataset.dropped) == ([0, 2], 1)
    again = make(rows, max_prompt_length=9, filter_overlong_prompts_workers=2)
    assert again.rows.tolist() == [0, 2]


@pytest.mark.parametrize("how", ["left", "right", "middle", "error"])
def test_a_prompt_with_images_is_never_cut(make, how):
    rows = [row("<image> <image>", images=as_bytes(0, 1)), row("w1 w2 w3 w4 w5")]
    dataset = make(rows, max_prompt_length=9, truncation=how, filter_overlong_prompts=False)
    with pytest.raises(CapacityError, match=r"row 0 of .*13 tokens"):
        dataset[0]
    if how != "error":
        assert len(dataset[1]["raw_prompt_ids"]) == 9


def test_arguments_of_the_processor_are_given_on(make):
    dataset = make([row("<image>", images=as_bytes(0))], mm_processor_kwargs={"do_rescale": False})
    assert dataset[0]["multi_modal_inputs"]["pixel_values"].shape == (1, 3, 8, 8)
    plain = make([row("<image>", images=as_bytes(200))])[0]["multi_modal_inputs"]["pixel_values"]
    dataset = make([row("<image>", images=as_bytes(200))], mm_processor_kwargs={"do_rescale": False})
    assert not torch.equal(dataset[0]["multi_modal_inputs"]["pixel_values"], plain)


def test_a_column_of_media_holds_lists(make):
    with pytest.raises(InputTypeError, match=r"row 0 of .*images: got str, expected a list"):
        make([row("<image>", images="a.png")])


def test_a_failing_processor_is_an_error_that_names_the_row(make):
    with pytest.raises(InputError, match=r"row 0 of .*the processor failed.*size"):
        make([row("<image>", images=as_bytes(0))], mm_processor_kwargs={"size": "wide"})


def test_a_dataset_with_a_processor_can_be_pickled(make):
    dataset = make([row("<image>", images=as_bytes(3))])
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[0]["input_ids"], dataset[0]["input_ids"])
    assert again[0]["multi_modal_data"]["image"][0].getpixel((0, 0)) == (3, 3, 3)


# -------------------------------------------------------------------------------------------------------------- videos


def test_videos_are_lists_of_frames(make):
    rows = [row("w1 <video> w2 <image>", videos=[as_bytes(1, 2, 3)], images=as_bytes(9)), row("w1")]
    got = make(rows, FRAMES)[0]
    (video,) = got["multi_modal_data"]["video"]
    assert (video.shape, video.dtype) == ((3, 8, 8, 3), np.uint8)
    assert video[:, 0, 0, 0].tolist() == [1, 2, 3]
    inputs = got["multi_modal_inputs"]
    assert inputs["video_grid_thw"].tolist() == [[3, 2, 2]]
    assert inputs["image_grid_thw"].tolist() == [[1, 2, 2]]
    tokens = ids("<bos> user : w1 <video> <video> <video> w2 <image> assistant :")
    assert got["input_ids"].tolist()[-len(tokens) :] == tokens
    # What the processor tells of each token stays beside it.
    assert inputs["mm_token_type_ids"].tolist() == [[0] * (24 - len(tokens)) + [0, 0, 0, 0, 2, 2, 2, 0, 1, 0, 0]]


def test_positions_come_from_the_model_where_the_processor_has_its_method(make):
    from transformers import Qwen2VLConfig, Qwen2VLModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    config = Qwen2VLConfig(
        text_config={**sizes, "vocab_size": 8, "num_key_value_heads": 1, "rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 8, "hidden_size": 8, "num_heads": 1, "patch_size": 4},
    )
    with torch.device("meta"):
        model = Qwen2VLModel(config)
    processor = chat.FramesProcessor(TOKENIZER)
    processor.get_rope_index = model.get_rope_index
    rows = [row("w1 <image> w2", images=as_bytes(0, size=(16, 8))), row("w1")]
    dataset = make(rows, processor, filter_overlong_prompts=False, max_prompt_length=12)
    positions = dataset[0]["position_ids"]
    assert (positions.shape, positions.dtype) == ((3, 12), torch.long)
    assert positions.tolist() == [  # <bos> user : w1, 1x2 places, w2 assistant :
        [0, 0, 0, 0, 1, 2, 3, 4, 4, 6, 7, 8],
        [0, 0, 0, 0, 1, 2, 3, 4, 4, 6, 7, 8],
        [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
    ]
    assert dataset[1]["position_ids"].tolist() == [[0] * 6 + list(range(6))] * 3
    assert collate_fn(list(dataset))["position_ids"].shape == (2, 3, 12)


def test_without_that_method_positions_count_valid_tokens():
    mask = torch.tensor([0, 0, 1, 1, 1])
    assert position_ids({"attention_mask": mask}, {}, object()).tolist() == [0, 0, 0, 1, 2]


def test_a_model_s_positions_in_the_padding_become_0():
    class Processor:
        def get_rope_index(self, input_ids, attention_mask, image_grid_thw=None):  # like Qwen2-VL's before mm types
            positions = (attention_mask.cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
            return positions.expand(3, 1, -1) + image_grid_thw, None

    mask = torch.tensor([0, 0, 1, 1])
    tensors = {"input_ids": mask, "attention_mask": mask}
    got = position_ids(tensors, {"image_grid_thw": torch.tensor(5), "pixel_values": mask}, Processor())
    assert got.tolist() == [[0, 0, 5, 6]] * 3


# --------------------------------------------------------------------------------------------------------------- forms


@settings(deadline=None, max_examples=25)
@given(
    width=st.integers(1, 6),
    height=st.integers(1, 6),
    form=st.sampled_from(["image", "bytes", "dict", "inner", "array", "lists", "url"]),
    data=st.data(),
)
def test_every_form_of_an_image_gives_the_same_pixels(width, height, form, data):
    values = data.draw(st.lists(st.integers(0, 255), min_size=width * height * 3, max_size=width * height * 3))
    pixels = np.array(values, dtype=np.uint8).reshape(height, width, 3)
    image = Image.fromarray(pixels)
    given_as = {
        "image": lambda: image,
        "bytes": lambda: png(image),
        "dict": lambda: {"bytes": png(image), "path": "a.png"},
        "inner": lambda: {"image": png(image), "bytes": None},
        "array": lambda: pixels,
        "lists": pixels.tolist,
        "url": lambda: "data:image/png;base64," + base64.b64encode(png(image)).decode(),
    }[form]()
    assert np.array_equal(np.asarray(load_image(given_as)), pixels)


def test_images_are_read_from_paths_and_made_rgb(tmp_path):
    path = tmp_path / "grey.png"
    Image.new("L", (2, 3), 7).save(path)
    for given_as in (path, str(path), f"file://{path}", {"path": str(path), "bytes": None}):
        image = load_image(given_as)
        assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (2, 3), (7, 7, 7))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (3, InputTypeError, "image: got int"),
        ({"bytes": None}, InputError, r"got a dict with \[\]"),
        ({"image": b"x", "max_pixels": 4}, InputError, "'max_pixels'"),
        (np.zeros((2, 2)), InputError, r"float64 \(2, 2\), expected an array \(H, W, 3\)"),
        (np.full((1, 1, 3), 256), InputError, "0 to 255"),
        ([[1], [2, 3]], InputError, "ragged"),
        ("data:text,hello", InputError, "base64"),
        ("data:image/png;base64,*", InputError, "can't be read"),
        (b"", InputError, "0 bytes can't be decoded"),
        ("/nowhere/a.png", FileNotFoundError, "nowhere"),
    ],
)
def test_what_is_no_image_is_an_error(value, error, message):
    with pytest.raises(error, match=message):
        load_image(value)


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"video": v}, lambda v: {"frames": v}])
def test_forms_of_a_video(wrap):
    frames = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    for value in (frames, list(frames), [png(Image.fromarray(frame)) for frame in frames]):
        assert np.array_equal(load_video(wrap(value)), frames)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("film.mp4", InputTypeError, "decoded into frames"),
        ([], InputError, "no frames"),
        ([picture(), picture(size=(4, 8))], InputError, "sizes 4x8, 8x8"),
        (np.zeros((2, 2, 3), dtype=np.uint8), InputError, r"\(T, H, W, 3\)"),
    ],
)
def test_what_is_no_video_is_an_error(value, error, message):
    with pytest.raises(error, match=message):
        load_video(value)
