from typing import Any

import pytest
from conftest import REPOSITORY

from kvasir import ImageTokens, InvalidArgumentError, MultimodalItem, local_hashes, with_images

# Made by SGLang 0.5.22 and 0.5.23 themselves.
GOLDEN = REPOSITORY / "proto/tests/data/image-tokens.txt"
IMAGE = "1234567890abcdef"


def test_numbers_are_those_of_sglang() -> None:
    vectors = [line.split() for line in GOLDEN.read_text().splitlines() if line[0] != "#"]
    assert len(vectors) >= 3
    for image, narrow, *wide in vectors:
        images = [MultimodalItem(image, 1, 5)]
        narrowed, rest = with_images([7] * 7, images, ImageTokens.SGLANG_30_BIT)
        assert (narrowed, rest) == ([7] + [int(narrow)] * 5 + [7], [])
        widened, rest = with_images([7] * 7, images, ImageTokens.SGLANG_62_BIT)
        assert (widened, rest) == ([7, *map(int, wide), int(wide[0]), 7], [])
        assert with_images([7] * 7, images, ImageTokens.IDENTIFIER) == ([7] * 7, images)


def test_only_the_last_digits_of_a_hash_count() -> None:
    form = ImageTokens.SGLANG_62_BIT
    expected = with_images([7], [MultimodalItem(IMAGE, 0, 1)], form)
    for same in (IMAGE.upper(), "0x" + IMAGE, "ffff" + IMAGE):
        assert with_images([7], [MultimodalItem(same, 0, 1)], form) == expected


def test_wide_tokens_are_hashed_as_the_index_does() -> None:
    # The same numbers are in the index's own test of wide tokens.
    assert local_hashes([1, 1 << 40], 2) == [0x48BBF6C2BAA7ED2A]
    assert local_hashes([1, 2, 1, 1 << 40], 2) == [local_hashes([1, 2], 2)[0], 0x48BBF6C2BAA7ED2A]


@pytest.mark.parametrize(
    ("field", "image"),
    [
        ("images[0].identifier", MultimodalItem("cat.png", 0, 1)),
        ("images[0].identifier", MultimodalItem("", 0, 1)),
        ("images[0].token_offset", MultimodalItem(IMAGE, -1, 1)),
        ("images[0].token_count", MultimodalItem(IMAGE, 1, 2)),
    ],
)
def test_invalid_images_are_named(field: str, image: MultimodalItem) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        with_images([1, 2], [image], ImageTokens.SGLANG_30_BIT)
    assert error.value.field == field


def test_an_invalid_form_is_named() -> None:
    form: Any = "sglang"
    with pytest.raises(InvalidArgumentError) as error:
        with_images([1], [], form)
    assert error.value.field == "form"
