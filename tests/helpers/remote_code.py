"""A model directory whose processor is code of its own, without the replacement protocol."""

import json
import shutil
from pathlib import Path

CODE = '''
from transformers import BatchFeature, ProcessorMixin


class OwnProcessor(ProcessorMixin):
    """Replaces a placeholder in its own call."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = "<image>"

    def __call__(self, images=None, text=None, images_kwargs=None, return_tensors=None, **kwargs):
        text = [text] if isinstance(text, str) else list(text)
        data = {}
        if images is not None:
            data = dict(self.image_processor(images, return_tensors=return_tensors))
            text = [sample.replace("<image>", EXPANSION) for sample in text]
        return BatchFeature({**self.tokenizer(text), **data}, tensor_type=return_tensors)
'''
PER_ITEM = '"<image>" * 3'
ACROSS_ITEMS = '"<image>" * (2 + len(images))'


def make_remote_model(source: Path, directory: Path, expansion: str = PER_ITEM) -> Path:
    """Copy a LLaVA directory and put the code in place of its processor."""
    shutil.copytree(source, directory)
    (directory / "own.py").write_text(CODE.replace("EXPANSION", expansion))
    path = directory / "processor_config.json"
    config = json.loads(path.read_text())
    image_processor = config["image_processor"]
    path.write_text(
        json.dumps(
            {
                "processor_class": "OwnProcessor",
                "auto_map": {"AutoProcessor": "own.OwnProcessor"},
                "image_processor": image_processor,
            }
        )
    )
    return directory
