"""A model directory whose tokenizer is Python code of its own, as some repositories bring one."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

CODE = '''
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizer


class SlowTokenizer(PreTrainedTokenizer):
    """Splits text as a fast tokenizer does, without being one."""

    vocab_files_names = {"vocab_file": "plain.json"}

    def __init__(self, vocab_file, adds_bos=False, **kwargs):
        self._plain = Tokenizer.from_file(vocab_file)
        self._adds_bos = adds_bos
        super().__init__(adds_bos=adds_bos, **kwargs)

    @property
    def vocab_size(self):
        return self._plain.get_vocab_size()

    def get_vocab(self):
        return {**self._plain.get_vocab(), **self.added_tokens_encoder}

    def build_inputs_with_special_tokens(self, ids, pair=None):
        return ([self.bos_token_id] if self._adds_bos else []) + ids

    def _tokenize(self, text, **kwargs):
        return self._plain.encode(text, add_special_tokens=False).tokens

    def _convert_token_to_id(self, token):
        return self._plain.token_to_id(token)

    def _convert_id_to_token(self, index):
        return self._plain.id_to_token(index)
'''


def make_slow_model(source: Path, directory: Path) -> Path:
    """Copy a model directory and put Python code in place of its fast tokenizer."""
    shutil.copytree(source, directory)
    (directory / "slow.py").write_text(CODE)
    fast = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").unlink()
    added = {token["id"]: token for token in fast.pop("added_tokens")}
    plain = {**fast, "added_tokens": [], "post_processor": None}
    (directory / "plain.json").write_text(json.dumps(plain))
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {
        "tokenizer_class": "SlowTokenizer",
        "adds_bos": bool(Tokenizer.from_file(str(source / "tokenizer.json")).encode("").ids),
        "auto_map": {"AutoTokenizer": ["slow.SlowTokenizer", None]},
        "added_tokens_decoder": {
            str(number): {k: v for k, v in token.items() if k != "id"}
            for number, token in added.items()
        },
    }
    config.pop("backend", None)
    path.write_text(json.dumps(config))
    return directory
