import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from processors.fast import resizing
from processors.fast.resizing import AVAILABLE, Resizing, resize, suits

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler, or no AVX2")

if AVAILABLE:
    from processors.fast import _resize

MODES = ["bilinear", "bicubic"]


def pictures(count, height, width):
    """Noise of extreme values, where rounding and clamping show."""
    random = np.random.default_rng(count * height + width)
    noise = random.integers(-100, 356, (count, height, width, 3)).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(noise).permute(0, 3, 1, 2)


def by_torch(pixels, size, mode):
    return interpolate(pixels, size, mode=mode, align_corners=False, antialias=True)


sides = st.integers(1, 90)


@given(
    count=st.integers(1, 3),
    source=st.tuples(sides, sides),
    target=st.tuples(sides, sides),
    mode=st.sampled_from(MODES),
    num_threads=st.integers(1, 5),
)
def test_any_shape_gives_the_bits_of_torch(count, source, target, mode, num_threads):
    """Whatever the sizes, up or down, one pixel or many."""
    pixels = pictures(count, *source)
    assert torch.equal(by_torch(pixels, target, mode), resize(pixels, target, mode, num_threads))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((768, 1024), (756, 1036)),
        ((768, 1024), (768, 1036)),
        ((768, 1024), (756, 1024)),
        ((1080, 1920), (1092, 1932)),
        ((2000, 3000), (336, 224)),
        ((3, 5000), (900, 7)),
        ((5000, 1), (1, 3000)),
        ((64, 64), (1500, 1500)),
    ],
)
@pytest.mark.parametrize("num_threads", [1, 2, 16, 1000])
def test_large_pictures_give_the_bits_of_torch(source, target, mode, num_threads):
    """Bands, rings and rows that end within a register change nothing."""
    pixels = pictures(1, *source)
    assert torch.equal(by_torch(pixels, target, mode), resize(pixels, target, mode, num_threads))


@pytest.mark.parametrize("value", [0, 255])
def test_flat_pictures_stay_flat(value):
    """Weights sum to one: no extreme value moves."""
    pixels = torch.full((1, 70, 90, 3), value, dtype=torch.uint8).permute(0, 3, 1, 2)
    assert (resize(pixels, (33, 121), "bicubic", 1) == value).all()


@pytest.mark.parametrize("mode", MODES)
def test_crops_and_flips_are_read_where_they_lie(mode):
    """A view whose rows lie apart, or upside down, is resized without a copy and to the same."""
    whole = pictures(2, 60, 80)
    for view in (whole[:, :, 5:40, 10:70], whole[:1, :, 5:40], whole[1:]):
        assert suits(view, (50, 51), mode)
        assert torch.equal(by_torch(view, (50, 51), mode), resize(view, (50, 51), mode, 2))
    numpy = whole.permute(0, 2, 3, 1).numpy()[:, ::-1]
    out = np.zeros((2, 50, 51, 3), np.uint8)
    _resize.resize(numpy, out, mode == "bicubic", 2)
    expected = by_torch(whole.flip(2), (50, 51), mode)
    assert torch.equal(expected, torch.from_numpy(out).permute(0, 3, 1, 2))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_beside_the_output_is_written(mode):
    """Whole registers are stored, but never past the end."""
    pixels = pictures(1, 40, 33).permute(0, 2, 3, 1).numpy()
    for height, width in [(1, 1), (2, 3), (17, 11), (40, 10), (80, 33)]:
        count = height * width * 3
        memory = np.full(64 + count + 64, 0xA5, np.uint8)
        out = memory[64 : 64 + count].reshape(1, height, width, 3)
        _resize.resize(pixels, out, mode == "bicubic", 1)
        assert (memory[:64] == 0xA5).all()
        assert (memory[64 + count :] == 0xA5).all()


def count_calls(monkeypatch):
    calls = []

    def counting(*arguments):
        calls.append(arguments)
        return resize(*arguments)

    monkeypatch.setattr("processors.fast.resizing.resize", counting)
    return calls


def test_within_the_mode_torch_resizes_by_our_own_pass(monkeypatch):
    """The call that torchvision makes is taken over, and only until the mode ends."""
    calls = count_calls(monkeypatch)
    pixels = pictures(1, 50, 60)
    expected = by_torch(pixels, [20, 30], "bicubic")
    assert not calls
    with Resizing(lambda *call: resizing.resize(*call, 1)):
        inside = by_torch(pixels, [20, 30], "bicubic")
    assert len(calls) == 1
    assert torch.equal(expected, inside)
    assert expected.stride() == inside.stride()
    by_torch(pixels, [20, 30], "bicubic")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("make", "kwargs"),
    [
        (lambda p: p.contiguous(), {}),
        (lambda p: p.float(), {}),
        (lambda p: p[:, :, :, ::2], {}),
        (lambda p: p[:, :1], {}),
        (lambda p: p[:, [0, 1, 2, 0]], {}),
        (lambda p: p, {"mode": "nearest", "antialias": False}),
        (lambda p: p, {"antialias": False}),
        (lambda p: p, {"align_corners": True}),
        (lambda p: p, {"size": None, "scale_factor": 0.5}),
    ],
    ids=["planar", "float", "strided", "gray", "alpha", "nearest", "aliased", "corners", "scale"],
)
def test_other_calls_are_handed_on(monkeypatch, make, kwargs):
    """What our own pass does not do is done by torch, to the same result."""
    calls = count_calls(monkeypatch)
    pixels = make(pictures(1, 50, 60))
    call = {"size": (20, 30), "mode": "bilinear", "antialias": True, **kwargs}
    expected = interpolate(pixels, **call)
    with Resizing(lambda *call: resizing.resize(*call, 1)):
        assert torch.equal(expected, interpolate(pixels, **call))
    assert not calls


PICTURE, OUT = np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("picture", "out", "threads"),
    [
        (np.zeros((4, 4, 3), np.uint8), OUT, 1),
        (np.zeros((1, 4, 4, 4), np.uint8), OUT, 1),
        (np.zeros((1, 4, 4, 3), np.uint16), OUT, 1),
        (np.zeros((1, 4, 8, 3), np.uint8)[:, :, ::2], OUT, 1),
        (np.zeros((1, 4, 4, 6), np.uint8)[..., ::2], OUT, 1),
        (np.zeros((1, 0, 4, 3), np.uint8), OUT, 1),
        (np.zeros((2, 4, 4, 3), np.uint8), OUT, 1),
        (PICTURE, np.zeros((1, 2, 2, 4), np.uint8), 1),
        (PICTURE, np.zeros((1, 2, 2, 3), np.float32), 1),
        (PICTURE, np.zeros((1, 0, 2, 3), np.uint8), 1),
        (PICTURE, np.zeros((2, 3), np.uint8), 1),
        (np.broadcast_to(PICTURE[:, :1], (1, (1 << 20) + 1, 4, 3)), OUT, 1),
        (PICTURE, OUT, 0),
        (PICTURE, OUT, -1),
    ],
)
def test_what_does_not_fit_is_refused(picture, out, threads):
    """No shape or buffer makes the pass touch memory that is not its own."""
    with pytest.raises(ValueError, match=r"pictures are|one output|sides are|at least one thread"):
        _resize.resize(picture, out, True, threads)


def test_outputs_must_be_writable_and_contiguous():
    """As those of the other passes."""
    frozen = OUT.copy()
    frozen.flags.writeable = False
    for out in (frozen, np.zeros((1, 4, 2, 3), np.uint8)[:, ::2]):
        with pytest.raises((ValueError, BufferError)):
            _resize.resize(PICTURE, out, True, 1)
