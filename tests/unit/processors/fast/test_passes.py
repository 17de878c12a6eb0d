import numpy as np
import pytest
import torch

from processors.fast.passes import AVAILABLE, write_patches, write_planes, write_runs

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler")

if AVAILABLE:
    from processors.fast import _kernels

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]


def noise(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def table_of(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.uint8:
        return torch.stack([torch.arange(256).roll(i) for i in range(3)]).to(dtype)
    return ((torch.arange(768).reshape(3, 256) - 400) / 7).to(dtype)


def looked_up(pixels: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Look pixels (..., 3) up, channel by channel."""
    return torch.stack([table[c][pixels[..., c].long()] for c in range(3)], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("patch", "merge", "times"), [(14, 2, 2), (16, 2, 1), (5, 1, 3), (2, 4, 2)]
)
def test_still_patches(dtype, patch, merge, times):
    """A still image fills all slots of each channel, block by block."""
    height, width = 2 * patch * merge, 3 * patch * merge
    frame, table = noise(1, height, width, 3), table_of(dtype)
    out = torch.zeros(height * width // patch**2, 3 * times * patch**2, dtype=dtype)
    write_patches(frame, out, table, patch_size=patch, merge_size=merge, times=times, repeat=True)
    values = looked_up(frame[0], table)
    blocks = values.reshape(2, merge, patch, 3, merge, patch, 3).permute(0, 3, 1, 4, 6, 2, 5)
    expected = blocks.unsqueeze(5).expand(-1, -1, -1, -1, -1, times, -1, -1).reshape(out.shape)
    assert torch.equal(expected, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0, 4, 8, 24, 60])
def test_large_outputs_may_start_anywhere(dtype, start):
    """An output beyond the caches is written whole and nothing beside it, however it is aligned."""
    patch, merge, times, height, width = 14, 2, 2, 504, 812
    frame, table = noise(1, height, width, 3), table_of(dtype)
    count = height * width * 3 * times
    nbytes = count * dtype.itemsize
    memory = torch.full((start + nbytes + 64,), 0xA5, dtype=torch.uint8)
    out = memory[start : start + nbytes].view(dtype).view(-1, 3 * times * patch**2)
    write_patches(frame, out, table, patch_size=patch, merge_size=merge, times=times, repeat=True)
    apart = torch.zeros(out.shape, dtype=dtype)
    for top in range(0, height, patch * merge):
        band = frame[:, top : top + patch * merge]
        rows = slice(top * width // patch**2, (top + patch * merge) * width // patch**2)
        # A band is small enough for the plain stores.
        write_patches(
            band, apart[rows], table, patch_size=patch, merge_size=merge, times=times, repeat=True
        )
    assert torch.equal(apart.view(torch.uint8), out.view(torch.uint8))
    assert (memory[:start] == 0xA5).all()
    assert (memory[start + nbytes :] == 0xA5).all()


@pytest.mark.parametrize("num_frames", [1, 2, 3, 4])
def test_video_patches_repeat_the_last_frame(num_frames):
    """Frames share rows two by two; a single last frame stands twice."""
    patch, height, width = 4, 8, 12
    frames, table = noise(num_frames, height, width, 3), table_of(torch.float32)
    pairs = -(-num_frames // 2)
    out = torch.zeros(pairs * 6, 3 * 2 * patch**2)
    write_patches(frames, out, table, patch_size=patch, merge_size=1, times=2, repeat=False)
    padded = torch.cat([frames, frames[-1:]])[: 2 * pairs]
    values = looked_up(padded, table).reshape(pairs, 2, 2, patch, 3, patch, 3)
    assert torch.equal(values.permute(0, 2, 4, 6, 1, 3, 5).reshape(out.shape), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [True, False])
def test_planes_of_any_stride(dtype, channels_last):
    """Tiles are written alike from either memory order, from a crop, and from a flipped view."""
    images, table = noise(2, 3, 9, 7), table_of(dtype)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    for view in (images, images[:, :, 2:8, 1:6]):
        out = torch.zeros(view.shape, dtype=dtype)
        write_planes(view, out, table)
        assert torch.equal(looked_up(view.permute(0, 2, 3, 1), table).permute(0, 3, 1, 2), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("run", [1, 4])
def test_runs(dtype, run):
    """The channel changes every `run` codes."""
    codes, table = noise(5, 3 * run * 2), table_of(dtype)
    out = torch.zeros(codes.shape, dtype=dtype)
    write_runs(codes, out, table, run)
    channel = torch.arange(codes.numel()) // run % 3
    expected = torch.stack([table[c] for c in channel.tolist()])
    picked = expected.gather(1, codes.reshape(-1, 1).long()).reshape(codes.shape)
    assert torch.equal(picked, out)


FRAMES = np.zeros((1, 4, 4, 3), np.uint8)
TABLE = np.zeros((3, 256), np.float32)


def patches(frames=FRAMES, out=None, table=TABLE, sizes=(2, 1, 1)):
    _kernels.patchify(frames, np.zeros(48, np.float32) if out is None else out, table, *sizes, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"out": np.zeros(47, np.float32)},
        {"out": np.zeros(49, np.float32)},
        {"out": np.zeros(48, np.float64)},
        {"out": np.zeros(48, np.uint8)},
        {"table": np.zeros((3, 255), np.float32)},
        {"table": np.zeros(0, np.float32)},
        {"frames": np.zeros((1, 4, 4, 4), np.uint8)},
        {"frames": np.zeros((4, 4, 3), np.uint8)},
        {"frames": np.zeros((1, 4, 4, 3), np.uint16)},
        {"frames": np.zeros((1, 4, 4, 6), np.uint8)[..., ::2]},
        {"frames": np.zeros((1, 4, 8, 3), np.uint8)[:, :, ::2]},
        {"frames": np.zeros((0, 4, 4, 3), np.uint8)},
        {"frames": np.zeros((2, 4, 4, 3), np.uint8)},
        {"sizes": (0, 1, 1)},
        {"sizes": (-2, 1, 1)},
        {"sizes": (3, 1, 1)},
        {"sizes": (2, 3, 1)},
        {"sizes": (2, 1, 0)},
        {"sizes": (2, 1, 2)},
        {"sizes": (2**62, 2**62, 2**62)},
    ],
)
def test_patchify_refuses_what_does_not_fit(arguments):
    """No size or buffer makes the pass touch memory that is not its own."""
    with pytest.raises(ValueError, match=r"must|are \(|has 3"):
        patches(**arguments)


def test_read_only_and_scattered_outputs_are_refused():
    """An output must be writable and contiguous."""
    frozen = np.zeros(48, np.float32)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        patches(out=frozen)
    with pytest.raises((ValueError, BufferError)):
        patches(out=np.zeros(96, np.float32)[::2])


def test_planes_and_lookup_refuse_what_does_not_fit():
    """Shapes, sizes and runs are checked before anything is read."""
    pixels, out = np.zeros((1, 2, 2, 3), np.uint8), np.zeros(12, np.float32)
    for bad in (np.zeros((2, 2, 3), np.uint8), np.zeros((1, 2, 2, 4), np.uint8)):
        with pytest.raises(ValueError, match="pixels are"):
            _kernels.planes(bad, out, TABLE, 1)
    with pytest.raises(ValueError, match="output"):
        _kernels.planes(pixels, out[:11], TABLE, 1)
    codes = np.zeros(12, np.uint8)
    for run in (0, -1, 5, 6, 12, 2**62):
        with pytest.raises(ValueError, match="runs"):
            _kernels.lookup(codes, out, TABLE, run)
    with pytest.raises(ValueError, match="output"):
        _kernels.lookup(codes, out[:9], TABLE, 2)


def test_empty_inputs_write_nothing():
    """No pixels is a valid number of pixels."""
    _kernels.planes(np.zeros((0, 2, 2, 3), np.uint8), np.zeros(0, np.float32), TABLE, 1)
    _kernels.lookup(np.zeros(0, np.uint8), np.zeros(0, np.float32), TABLE, 1)


@pytest.mark.parametrize("num_threads", [2, 3, 16, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bands_write_what_one_thread_writes(dtype, num_threads):
    """However many threads share the work, and wherever their bands meet."""
    table = table_of(dtype)
    pixels = noise(3, 504, 644, 3)
    sizes = {"patch_size": 14, "merge_size": 2, "times": 2, "repeat": False}
    alone, shared = (torch.zeros(2 * 36 * 46, 1176, dtype=dtype) for _ in range(2))
    write_patches(pixels, alone, table, **sizes)
    write_patches(pixels, shared, table, **sizes, num_threads=num_threads)
    assert torch.equal(alone, shared)
    alone, shared = (torch.zeros(3, 3, 504, 644, dtype=dtype) for _ in range(2))
    write_planes(pixels.permute(0, 3, 1, 2), alone, table)
    write_planes(pixels.permute(0, 3, 1, 2), shared, table, num_threads)
    assert torch.equal(alone, shared)
