import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import interpolate, pad

from processors.fast import Recording
from processors.fast.tape import MAX_CONSTANTS_NBYTES


class OwnCall:
    """What a tape needs of a call."""

    def __init__(self):
        self.table = None


def noise(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape or (3, 20, 30), dtype=torch.uint8, generator=generator)


def record(function, media=None):
    """Record a function of pixels that returns features."""
    media = noise(0) if media is None else media
    call = OwnCall()
    with Recording(call, media) as recording:
        features = function(media)
    return recording.tape(features)


def views(pixels):
    left, right = pixels[None].permute(0, 2, 3, 1).split((10, 20), dim=2)
    return {"one": left.reshape(-1, 3), "other": right.flatten(1, 2).transpose(1, 2)}


def arithmetic(pixels):
    resized = interpolate(pixels[None].float(), (7, 9), mode="bilinear", antialias=True)
    return {"pixel_values": torch.cat([resized, resized.flip(-1)]) / 255 - 0.5}


def in_place(pixels):
    image = pixels.float()
    image.view(-1).sub_(1.5)
    image /= 2.0
    return {"pixel_values": image}


def padded(pixels):
    canvas = torch.zeros((1, 3, 40, 40), dtype=torch.uint8)
    mask = torch.zeros((40, 40), dtype=torch.bool)
    canvas[0, :, :20, :30] = pixels
    mask[:20, :30] = True
    return {"pixel_values": canvas, "pixel_mask": mask}


def padded_by_a_view(pixels):
    canvas = pixels.new_full((3, 40, 40), 9)
    canvas[:, 20:, 10:].copy_(pixels)
    canvas.clamp_(max=200)
    return {"pixel_values": canvas}


def joined_alone(pixels):
    return {"pixel_values": torch.cat([torch.stack([pixels], dim=1)]).unsqueeze(0)}


def returns_its_argument(pixels):
    return {"pixel_values": pixels.contiguous().to(torch.uint8).float()}


def minor_facts(pixels):
    height, width = pixels.shape[-2:]
    sizes = torch.tensor([[height, width]])
    ratio = sizes[0, 0].item() / sizes.prod().item()
    edges = torch.tensor(range(len(pixels)))
    return {
        "pixel_values": pad(pixels, (0, int(sizes.max())), value=3),
        "sizes": sizes * ratio + edges[0],
    }


REPEATED = [
    views, arithmetic, in_place, padded, padded_by_a_view, joined_alone, returns_its_argument,
    minor_facts,
]  # fmt: skip


@pytest.mark.parametrize("function", REPEATED, ids=lambda function: function.__name__)
def test_a_tape_does_to_other_pixels_what_the_call_would(function):
    """Views, arithmetic, writes and paddings, and what follows from the shape alone."""
    tape = record(function)
    for seed in (1, 2):
        media = noise(seed)
        expected = function(media.clone())
        played = tape.play(OwnCall(), media)
        assert played.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(tensor, played[name])
            assert tensor.dtype == played[name].dtype


@pytest.mark.parametrize(
    "look",
    [
        lambda pixels: pixels.max().item() > 3,
        lambda pixels: bool((pixels > 300).any()),
        lambda pixels: pixels.numpy().mean(),
        lambda pixels: pixels.tolist(),
        lambda pixels: torch.equal(pixels, pixels),
        lambda pixels: float(pixels[0, 0, 0]),
        lambda pixels: f"{pixels[0, 0, 0]}",
        lambda pixels: range(10)[pixels[0, 0, 0] % 10],
        lambda pixels: pixels[:, : pixels[0, 0, 0] % 3],
        lambda pixels: pixels[pixels > 9].shape,
        lambda pixels: pixels.nonzero().shape,
        lambda pixels: torch.where(pixels > 9)[0].shape,
        lambda pixels: pixels.flatten().unique().shape,
    ],
    ids=[
        "item",
        "bool",
        "numpy",
        "list",
        "equal",
        "float",
        "text",
        "index",
        "slice",
        "mask",
        "nonzero",
        "where",
        "unique",
    ],
)
def test_a_call_that_looks_at_pixels_has_no_tape(look):
    """What it did next may have depended on what it saw."""

    def function(pixels):
        look(pixels)
        return {"pixel_values": pixels.float()}

    assert record(function) is None


def test_a_call_that_looks_at_what_pixels_were_written_into_has_no_tape():
    """Memory holds pixels from then on, by whatever tensor it is read."""

    def function(pixels):
        canvas = torch.zeros((3, 20, 30), dtype=torch.uint8)
        rows = canvas.view(-1)
        canvas.copy_(pixels)
        return {"pixel_values": pixels, "is_dark": torch.tensor(int(rows[0]) < 9)}

    assert record(function) is None


def test_what_was_made_before_the_call_is_not_written_into():
    """A tape would write into it again, and others may hold it."""
    shared = torch.zeros((3, 20, 30), dtype=torch.uint8)

    def function(pixels):
        shared.copy_(pixels)
        return {"pixel_values": shared + 0}

    assert record(function) is None
    assert record(lambda pixels: {"pixel_values": torch.neg(pixels, out=shared)}) is None


def test_a_tape_holds_few_constants():
    """Tensors that no pixels went into stand in the tape, up to a bound."""
    few = torch.arange(MAX_CONSTANTS_NBYTES // 8)
    assert record(lambda pixels: {"pixel_values": pixels[0], "positions": few}) is not None
    more = torch.arange(MAX_CONSTANTS_NBYTES // 8 + 1)
    assert record(lambda pixels: {"pixel_values": pixels[0], "positions": more}) is None
    assert record(lambda pixels: {"pixel_values": pixels.sum() + more}) is None


def test_one_tensor_alone_is_joined_without_a_copy():
    """Nothing writes into it, so it may be the pixels themselves."""
    media = noise(1)
    played = record(joined_alone).play(OwnCall(), media)["pixel_values"]
    assert played.untyped_storage().data_ptr() == media.untyped_storage().data_ptr()
    copied = record(lambda pixels: {"pixel_values": torch.stack([pixels]).clamp_(max=9)})
    played = copied.play(OwnCall(), media)["pixel_values"]
    assert played.max() == 9
    assert media.max() > 9


def test_neither_a_recording_nor_a_tape_holds_pixels():
    """Intermediate tensors go as early as in the plain call."""
    gone = []

    def function(pixels):
        halves = pixels.float() / 2
        gone.append(weakref.ref(halves))
        result = halves + 1
        del halves
        assert gone[-1]() is None
        return {"pixel_values": result}

    media = noise(0)
    tape = record(function, media)
    features = tape.play(OwnCall(), media)
    kept = weakref.ref(features["pixel_values"])
    del features
    assert kept() is None
    seen = weakref.ref(media)
    del media
    assert seen() is None


def test_threads_share_a_tape():
    """A play has registers of its own."""
    tape = record(arithmetic)
    pictures = [noise(seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(lambda media: tape.play(OwnCall(), media), pictures))
    for media, features in zip(pictures, played, strict=True):
        assert torch.equal(arithmetic(media)["pixel_values"], features["pixel_values"])
