"""Converts images in prompts to the token ids that an engine uses for them."""

import enum
import hashlib
import re
from collections.abc import Sequence

from kvasir._check import read_int, read_list, read_name
from kvasir.errors import InvalidArgumentError
from kvasir.types import MultimodalItem

_SGLANG_BASE = 1_000_000
_SGLANG_TAG = b"sglang-mm-wide-pad-v1"


class ImageTokens(enum.Enum):
    """Token ids that an engine uses for an image, as declared by its worker."""

    IDENTIFIER = "identifier"
    """Placeholder tokens; identifiers beside the tokens tell images apart: vLLM."""
    SGLANG_30_BIT = "sglang-30-bit"
    """One number for all tokens of an image: SGLang until 0.5.22."""
    SGLANG_62_BIT = "sglang-62-bit"
    """Four numbers in turn: SGLang from 0.5.23."""


def with_images(
    token_ids: Sequence[int], images: Sequence[MultimodalItem], form: ImageTokens
) -> tuple[list[int], list[MultimodalItem]]:
    """Returns a prompt's `token_ids` and `multimodal` as engines of a form have them.

    `token_ids` has the placeholder tokens of the images. For SGLang, the identifier of an image is
    its hash as a hexadecimal number, of which the last 16 digits count: what requests to SGLang
    state as `mm_hashes`. Raises `InvalidArgumentError`.
    """
    if not isinstance(form, ImageTokens):
        raise InvalidArgumentError("form", f"is {form!r}: give a kvasir.ImageTokens")
    read_list("token_ids", token_ids)
    tokens = list(token_ids)
    if form is ImageTokens.IDENTIFIER:
        return tokens, list(images)
    for index, image in enumerate(images):
        field = f"images[{index}]"
        start = read_int(f"{field}.token_offset", image.token_offset, 0, len(tokens))
        count = read_int(f"{field}.token_count", image.token_count, 1, len(tokens) - start)
        identifier = read_name(f"{field}.identifier", image.identifier, required=True)
        if not re.fullmatch("(0x)?[0-9a-fA-F]+", identifier):
            raise InvalidArgumentError(
                f"{field}.identifier", "is no hash: give a hexadecimal number"
            )
        numbers = _numbers(form, int(identifier, 16) % (1 << 64))
        for at in range(count):
            tokens[start + at] = numbers[at % len(numbers)]
    return tokens, []


def _numbers(form: ImageTokens, image_hash: int) -> list[int]:
    if form is ImageTokens.SGLANG_30_BIT:
        return [_SGLANG_BASE + image_hash % (1 << 30)]
    digest = hashlib.sha256(_SGLANG_TAG + image_hash.to_bytes(8, "big")).digest()
    quarters = (int.from_bytes(digest[at : at + 8], "big") for at in range(0, 32, 8))
    return [_SGLANG_BASE + quarter % (1 << 62) for quarter in quarters]
