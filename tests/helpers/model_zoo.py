"""Every family of the zoo: `FAMILIES`, `build_model` and samples for the joint Hugging Face call.

`python -m tests.helpers.model_zoo DIRECTORY [FAMILY ...]` writes the directories.
"""

import argparse
import hashlib
import importlib
import os
import pkgutil
import shutil
from collections.abc import Iterable
from pathlib import Path

import transformers
from transformers.utils import logging

import processors.demo
from processors.types import Modality
from tests.helpers import zoo
from tests.helpers.zoo.family import FAMILIES, Family, Sample
from tests.helpers.zoo.media import noise_image, noise_video, tone

__all__ = [
    "FAMILIES",
    "Family",
    "Sample",
    "available_families",
    "build_model",
    "make_sample",
    "zoo_key",
]

for _module in sorted(m.name for m in pkgutil.iter_modules(zoo.__path__)):
    importlib.import_module(f"{zoo.__name__}.{_module}")


def available_families() -> list[str]:
    """Return the names of the families whose processors can be built with what is installed."""
    return [name for name, family in FAMILIES.items() if not family.missing]


def build_model(name: str, directory: Path) -> Path:
    """Write a family's model directory, or leave it if it is there, and return it.

    Several processes may build the same directory at once; the first one to finish wins.
    """
    if directory.exists():
        return directory
    building = directory.with_name(f".{directory.name}.{os.getpid()}")
    # transformers warns of default ids outside a small vocabulary before they can be set.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        FAMILIES[name].save(building)
        building.rename(directory)
    except OSError:
        if not directory.exists():
            raise
    finally:
        logging.set_verbosity(verbosity)
        shutil.rmtree(building, ignore_errors=True)
    return directory


def zoo_key() -> str:
    """Return what a built directory depends on: transformers' version and our builders' text."""
    digest = hashlib.sha256(transformers.__version__.encode())
    for folder in (zoo.__path__[0], processors.demo.__path__[0]):
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def make_sample(
    family: Family,
    *,
    images: Iterable[tuple[int, int]] = (),
    videos: Iterable[tuple[int, int, int]] = (),
    audios: Iterable[float] = (),
    text: str | None = None,
) -> Sample:
    """Return synthetic media and a prompt that holds one placeholder for each of them.

    Args:
        family: The family whose placeholders are used.
        images: (width, height) of each image.
        videos: (frames, width, height) of each video.
        audios: Seconds of each clip.
        text: The prompt; by default all images, then all videos, then all clips, with words
            between them.
    """
    pictures = [noise_image(*size, seed=i) for i, size in enumerate(images)]
    clips = [noise_video(*size, seed=10 * i) for i, size in enumerate(videos)]
    sounds = [tone(s, family.sample_rate_hz, seed=i) for i, s in enumerate(audios)]
    if text is None:
        counts = (
            (Modality.IMAGE, len(pictures)),
            (Modality.VIDEO, len(clips)),
            (Modality.AUDIO, len(sounds)),
        )
        pieces = [f"{family.prompts[kind]}What is it?" for kind, n in counts for _ in range(n)]
        text = "Look: " + " And ".join(pieces)
    return Sample(text, pictures, clips, sounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES])
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for family_name in arguments.families or available_families():
        print(build_model(family_name, arguments.directory / family_name))
