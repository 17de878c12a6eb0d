"""The survey on a few models; the whole run is a command of its own."""

import pytest

from processors.fast import AVAILABLE
from processors.survey import media
from processors.survey.__main__ import main, survey
from processors.survey.defaults import build_from_defaults, processor_names
from processors.survey.table import Row, render
from processors.types import Modality, StageTraits


@pytest.mark.parametrize("family", ["gemma3", "llava_unigram", "clip"])
def test_prepared_models_are_exact(model_dir, family):
    """Image families with and without placeholders pass, and have a kernel that can be compact."""
    row = survey(family, model_dir(family), "prepared")
    assert row.parity == {Modality.IMAGE: "exact"}
    assert row.is_exact
    # LLaVA's crop needs values.
    plans_by = "zeros" if family == "llava_unigram" else "meta"
    assert row.traits == {Modality.IMAGE: StageTraits(plans_by, AVAILABLE, AVAILABLE)}


def test_defaults_build_what_transformers_has_defaults_for(tmp_path):
    """A family without a prepared directory is built from its classes."""
    assert "sam" in processor_names()
    build_from_defaults("sam", tmp_path / "sam")
    assert survey("sam", tmp_path / "sam", "defaults").parity[Modality.IMAGE] == "exact"


def test_what_cannot_be_loaded_says_why(tmp_path):
    """A directory without a processor becomes a row with the reason, not a failed run."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    row = survey("broken", tmp_path, "prepared")
    assert not row.parity
    assert row.origin.startswith("not loaded")
    assert "broken" in render([row]).split("## Not served")[1]


def test_table_escapes_placeholders():
    """A bar in a verdict does not end its cell."""
    line = render([Row("m", "P", "prepared", parity={Modality.IMAGE: "a|b"})]).splitlines()[-6]
    assert "a\\|b" in line


def test_columns_tell_modalities_apart_where_they_differ():
    """What holds of every modality is told once."""
    traits = {
        Modality.IMAGE: StageTraits("meta", has_kernel=True, has_compact=True),
        Modality.AUDIO: StageTraits("zeros", has_kernel=True, has_compact=False),
    }
    row = Row("m", "P", "prepared", parity=dict.fromkeys(traits, "exact"), traits=traits)
    line = next(line for line in render([row]).splitlines() if line.startswith("| m |"))
    assert line.endswith("| image meta, audio zeros | yes | image yes, audio no |")


def test_command_writes_the_file(model_dir, tmp_path):
    """The command surveys what it is told to and exits with 0 when all of it is exact."""
    folder = model_dir("clip").parent
    out = tmp_path / "models.md"
    assert main([str(folder), "--only", "clip", "--out", str(out)]) == 0
    assert "| clip | CLIPProcessor | prepared | exact |" in out.read_text()


def test_media_are_what_they_say():
    """The survey's own media open with the usual signatures."""
    assert media.png(20, 10, 0).startswith(b"\x89PNG")
    assert media.wav(0.1, 16000, 0)[8:12] == b"WAVE"
    assert media.mp4(4, 32, 32, 4, 0)[4:8] == b"ftyp"
