import json
import re

import pytest
from conftest import REPOSITORY

from kvasir import InvalidArgumentError, MultimodalItem, local_hashes, sequence_hashes
from kvasir.hashing import next_tokens_le

GOLDEN = REPOSITORY / "proto/tests/data/golden-hashes.jsonl"
CONTRACT = REPOSITORY / "proto/README.md"


def test_hashes_equal_the_published_crates() -> None:
    lines = GOLDEN.read_text().splitlines()
    assert len(lines) == 95
    for line in lines:
        vector = json.loads(line)
        size = vector["block_size"]
        # Only the first 16 of 64 hexadecimal digits count.
        multimodal = [
            MultimodalItem(item + "0" * 48, block * size, 1)
            for block, items in enumerate(vector["multimodal"])
            for item in items
        ]
        hashes = local_hashes(
            vector["tokens"],
            size,
            lora_name=vector["lora_name"],
            cache_salt=vector["cache_salt"],
            multimodal=multimodal,
        )
        assert [f"{value:016x}" for value in hashes] == vector["local"], line
        chain = sequence_hashes(hashes)
        assert [f"{value:016x}" for value in chain] == vector["sequence"], line


def test_the_contract_shows_the_golden_hashes() -> None:
    lines = GOLDEN.read_text().splitlines()
    rows = re.findall(r"^\| (\d+) (\|.*\|) *$", CONTRACT.read_text(), flags=re.M)
    assert len(rows) == 7
    for number, row in rows:
        vector = json.loads(lines[int(number) - 1])
        cells = [cell.strip().replace("`", "") for cell in row.strip("|").split("|")]
        size, lora_name, cache_salt, tokens, items, local, sequence = cells
        first, dots, last = tokens.partition("..")
        numbers = range(int(first), int(last) + 1) if dots else map(int, tokens.split())
        assert list(numbers) == vector["tokens"], row
        assert (int(size), lora_name) == (vector["block_size"], vector["lora_name"]), row
        assert cache_salt == vector["cache_salt"], row
        blocks = [block.replace("none", "").split() for block in items.split("/")] if items else []
        assert blocks == vector["multimodal"], row
        assert (local.split(), sequence.split()) == (vector["local"], vector["sequence"]), row


def test_the_contracts_example_of_an_item() -> None:
    hashes = local_hashes(range(18), 4, multimodal=[MultimodalItem("image", 6, 4)])
    assert " ".join(f"{value:016x}" for value in hashes) in CONTRACT.read_text().splitlines()


def test_known_values() -> None:
    assert local_hashes(range(32), 16) == [0xD47A8F41C833328A, 0xD43939178ABD00DB]
    salted = local_hashes(range(1, 9), 4, lora_name="adapter-a", cache_salt="tenant-a")
    assert salted == [0x8A5492A027CC43FA, 0xEDF15862DDCDC19B]
    # Tokens after the last whole block are ignored.
    assert local_hashes(range(1, 12), 4) == local_hashes(range(1, 9), 4)
    assert local_hashes([1, 2, 3], 4) == []


def test_an_item_changes_the_blocks_that_it_spans() -> None:
    plain = local_hashes(range(16), 4)
    spanned = local_hashes(range(16), 4, multimodal=[MultimodalItem("image", 6, 4)])
    changed = [before != after for before, after in zip(plain, spanned)]
    assert changed == [False, True, True, False]


@pytest.mark.parametrize(
    ("tokens", "field"),
    [
        ([1, -2], "token_ids[1]"),
        ([1 << 64], "token_ids[0]"),
        ([1, 2, "3"], "token_ids[2]"),
        ([1.5], "token_ids[0]"),
        (b"12345678", "token_ids"),
    ],
)
def test_invalid_tokens_are_named(tokens: list[int], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        local_hashes(tokens, 4)
    assert error.value.field == field


def test_tokens_are_not_in_messages() -> None:
    with pytest.raises(InvalidArgumentError) as error:
        local_hashes([98765432198765432198765], 4)
    assert "98765432198765432198765" not in str(error.value)


def test_tokens_beyond_32_bits_change_their_block_only() -> None:
    plain = local_hashes(range(8), 4)
    wide = local_hashes([0, 1, 2, 3, 4, 5, 6, 1 << 40], 4)
    assert [before != after for before, after in zip(plain, wide)] == [False, True]


def test_what_follows_each_block() -> None:
    def numbers(packed: bytes) -> list[int]:
        return [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]

    assert numbers(next_tokens_le(range(10), 4)) == [4, 8]
    assert numbers(next_tokens_le(range(8), 4)) == [4]
    first, second = numbers(next_tokens_le(range(10), 4, [MultimodalItem("image", 4, 2)]))
    assert first != 4
    assert second == 8


def test_items_outside_the_prompt_are_named() -> None:
    with pytest.raises(InvalidArgumentError) as error:
        local_hashes(range(8), 4, multimodal=[MultimodalItem("image", 6, 3)])
    assert error.value.field == "multimodal[0].token_count"
