"""A tokenizer of words `w0` to `w63`, made here: nothing is loaded."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from workload.data import Texts

_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = [*_SPECIAL, *(f"w{number}" for number in range(len(_SPECIAL), Texts.VOCABULARY))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    pad, begin, end, unknown = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=begin, eos_token=end, unk_token=unknown
    )
