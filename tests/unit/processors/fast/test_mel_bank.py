import numpy as np
import pytest
import torch

from processors.fast.mel_bank import AVAILABLE, LEAST_FRAMES, MelBank, find_bank

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="built without a compiler, or no AVX2")

if AVAILABLE:
    from processors.fast import _mel

NUM_BINS = 201


def triangles(num_mels, num_bins=NUM_BINS):
    """Filters that overlap their neighbours, as mel filters do, and leave out the first bin."""
    peaks = np.linspace(1, num_bins, num_mels + 2)
    bins = np.arange(num_bins)[:, None]
    up = (bins - peaks[:-2]) / (peaks[1:-1] - peaks[:-2])
    down = (peaks[2:] - bins) / (peaks[2:] - peaks[1:-1])
    return torch.from_numpy(np.maximum(0, np.minimum(up, down)).astype(np.float32))


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex64)


def by_torch(filters, spectra):
    return filters.T @ (spectra.mT.abs() ** 2).contiguous()


def bank_of(filters):
    bank = find_bank(filters)
    if bank is None:
        pytest.skip("torch sums products in another order on this machine")
    return bank


@pytest.mark.parametrize("num_mels", [40, 80, 128])
@pytest.mark.parametrize("num_frames", [16, 17, 31, 64, 333, 1013, 3000])
def test_levels_are_those_of_torch(num_mels, num_frames):
    """Of any number of frames and filters, of one clip or of two."""
    filters = triangles(num_mels)
    spectra = noise(2, num_frames, NUM_BINS)
    assert torch.equal(bank_of(filters).levels(spectra), by_torch(filters, spectra))


@pytest.mark.parametrize("num_bins", [8, 9, 65, 257, 513])
def test_other_spectra_are_those_of_torch_or_are_refused(num_bins):
    """Where blocks end is found out for each number of bins."""
    filters = triangles(20, num_bins)
    bank = find_bank(filters)
    spectra = noise(1, 70, num_bins)
    assert bank is None or torch.equal(bank.levels(spectra), by_torch(filters, spectra))


def test_magnitudes_are_those_of_torch():
    """Of numbers large, small and subnormal, alike and far apart, and on an axis."""
    random = np.random.default_rng(0)
    identity = MelBank(np.eye(NUM_BINS, dtype=np.float32), NUM_BINS)
    for exponent in range(-149, 44, 4):
        spread = np.exp2(random.uniform(-14, 14, (2, 64, NUM_BINS)) + exponent)
        real, imaginary = (random.standard_normal((2, 64, NUM_BINS)) * spread).astype(np.float32)
        imaginary[:, ::5], real[:, ::7], imaginary[::3, ::7] = real[:, ::5], 0, -0.0
        spectra = torch.complex(torch.from_numpy(real), torch.from_numpy(imaginary))[None]
        expected = torch.hypot(spectra.real.contiguous(), spectra.imag.contiguous()).square()
        assert torch.equal(identity.levels(spectra), expected.mT)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_finite_is_left_to_torch(value):
    """Nought times such a power is not nought, so that every level would differ."""
    bank = bank_of(triangles(80))
    for place in ((0, 0), (40, 100), (69, NUM_BINS - 1)):
        spectra = noise(1, 70, NUM_BINS)
        spectra[0][place] = value
        assert bank.levels(spectra) is None


def test_few_frames_and_other_layouts_are_left_to_torch():
    """Frames are read where the bins of each lie side by side."""
    bank = bank_of(triangles(80))
    assert bank.levels(noise(1, LEAST_FRAMES - 1, NUM_BINS)) is None
    assert bank.levels(noise(1, NUM_BINS, 70).mT) is None


def test_there_is_no_bank_of_too_many_bins():
    """The tile that is computed together has a bound."""
    assert find_bank(torch.ones(4096, 2)) is None
    assert find_bank(torch.ones(7, 2)) is None


@pytest.mark.parametrize(
    ("spectrum", "filters", "out", "block"),
    [
        ((15, 201, 2), (80, 201), (80, 15), 100),
        ((16, 7, 2), (80, 7), (80, 16), 100),
        ((16, 4096, 2), (80, 4096), (80, 16), 100),
        ((16, 201, 3), (80, 201), (80, 16), 100),
        ((16, 201, 2), (80, 200), (80, 16), 100),
        ((16, 201, 2), (80, 201), (79, 16), 100),
        ((16, 201, 2), (80, 201), (80, 17), 100),
        ((16, 201, 2), (80, 201), (80, 16), 0),
        ((201, 2), (80, 201), (80, 16), 100),
    ],
)
def test_buffers_that_do_not_fit_are_refused(spectrum, filters, out, block):
    """Nothing outside of them is read or written."""
    arrays = [np.zeros(shape, np.float32) for shape in (spectrum, filters, out)]
    with pytest.raises(ValueError, match=r"fit|few|dimensions"):
        _mel.mel(*arrays, block)


def test_buffers_of_other_kinds_are_refused():
    """Elements are float32 beside each other, and out can be written."""
    shapes = ((16, 201, 2), (80, 201), (80, 16))
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(ValueError, match="float32"):
        _mel.mel(arrays[0].astype(np.float64), *arrays[1:], 100)
    with pytest.raises(ValueError, match="contiguous"):
        _mel.mel(arrays[0][:, ::-1], *arrays[1:], 100)
    arrays[2].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _mel.mel(*arrays, 100)
