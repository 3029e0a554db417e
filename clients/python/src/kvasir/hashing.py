"""Hashes the blocks of a prompt, bit for bit as the index does."""

from collections.abc import Iterable, Sequence

import xxhash

from kvasir._check import (
    read_hash_list,
    read_int,
    read_list,
    read_name,
    read_salt,
    read_tokens,
    read_wide_tokens,
)
from kvasir.errors import InvalidArgumentError
from kvasir.limits import BLOCK_SIZE_TOKENS_MAX
from kvasir.types import MultimodalItem

HASH_SCHEME = "xxh3-64/1337"
"""Name of the hash scheme. Requests state it, and the index checks it."""

_SEED = 1337
_U64 = (1 << 64) - 1
_LOOK_AHEAD_SEED = 0x6C6F6F6B


def _seed(lora_name: str, cache_salt: str) -> int:
    seed = _SEED
    if read_name("lora_name", lora_name):
        seed += xxhash.xxh3_64_intdigest(lora_name.encode(), seed=0)
    if read_salt("cache_salt", cache_salt):
        seed += xxhash.xxh3_64_intdigest(cache_salt.encode(), seed=1)
    return seed & _U64


def multimodal_hash(identifier: str) -> int:
    """Hash of an identifier: the first 16 of exactly 64 hexadecimal digits, else XXH3-64."""
    if len(identifier) == 64 and all(digit in "0123456789abcdefABCDEF" for digit in identifier):
        return int(identifier[:16], 16)
    return xxhash.xxh3_64_intdigest(identifier.encode(), seed=0)


def _spans(items: Iterable[MultimodalItem], tokens: int) -> list[tuple[int, int, int]]:
    spans = []
    for index, item in enumerate(items):
        field = f"multimodal[{index}]"
        read_name(f"{field}.identifier", item.identifier, required=True)
        start = read_int(f"{field}.token_offset", item.token_offset, 0, tokens)
        count = read_int(f"{field}.token_count", item.token_count, 1, tokens - start)
        spans.append((start, start + count, multimodal_hash(item.identifier)))
    return spans


def local_hashes(
    token_ids: Sequence[int],
    block_size: int,
    *,
    lora_name: str = "",
    cache_salt: str = "",
    multimodal: Sequence[MultimodalItem] = (),
) -> list[int]:
    """Hashes of a prompt's complete blocks, independent of the blocks before them.

    Tokens after the last complete block are ignored. Raises `InvalidArgumentError`.
    """
    size = read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
    packed, width = read_wide_tokens("token_ids", token_ids)
    seed = _seed(lora_name, cache_salt)
    step = size * width
    blocks = len(packed) // step
    digest = xxhash.xxh3_64_intdigest
    if not multimodal and width == 4:
        view = memoryview(packed)
        return [digest(view[at : at + step], seed=seed) for at in range(0, blocks * step, step)]
    extras: list[list[int]] = [[] for _ in range(blocks)]
    for start, end, item in _spans(multimodal, len(packed) // width):
        for block in range(start // size, min((end - 1) // size + 1, blocks)):
            extras[block].append(item)
    hashes = []
    for block, items in enumerate(extras):
        content = b"".join(item.to_bytes(8, "little") for item in sorted(items))
        tokens = packed[block * step : (block + 1) * step]
        if width == 8 and all(token < 1 << 32 for token in token_ids[block * size :][:size]):
            tokens = read_tokens("token_ids", token_ids[block * size : (block + 1) * size])
        hashes.append(digest(tokens + content, seed=seed))
    return hashes


def next_tokens_le(
    token_ids: Sequence[int], block_size: int, multimodal: Sequence[MultimodalItem] = ()
) -> bytes:
    """What follows each whole block of a prompt, for engines whose hashes cover it.

    A little-endian u32 a block, and none for the last one if the prompt ends with it: the token, or
    a hash of the token and the multimodal content that begins with it. A token beyond 32 bits,
    which no such engine hashes, stands as its highest number.
    """
    size = read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
    starts: dict[int, list[int]] = {}
    for start, _, item in _spans(multimodal, len(token_ids)):
        starts.setdefault(start, []).append(item)
    packed = []
    for at in range(size, len(token_ids), size):
        token = min(token_ids[at], (1 << 32) - 1).to_bytes(4, "little")
        if at in starts:
            items = b"".join(item.to_bytes(8, "little") for item in sorted(starts[at]))
            digest = xxhash.xxh3_64_intdigest(token + items, seed=_LOOK_AHEAD_SEED)
            token = (digest >> 32).to_bytes(4, "little")
        packed.append(token)
    return b"".join(packed)


def sequence_hashes(local_hashes: Sequence[int]) -> list[int]:
    """Hashes of blocks with their complete prefixes: names for engines that have none."""
    names: list[int] = []
    for local in read_hash_list("local_hashes", local_hashes):
        if names:
            chained = names[-1].to_bytes(8, "little") + local.to_bytes(8, "little")
            names.append(xxhash.xxh3_64_intdigest(chained, seed=_SEED))
        else:
            names.append(local)
    return names


def event_hashes(
    token_ids: Sequence[int],
    block_size: int,
    blocks: int,
    *,
    lora_name: str = "",
    cache_salt: str = "",
    multimodal: Sequence[MultimodalItem] = (),
) -> list[int]:
    """As `local_hashes`, but the tokens must fill exactly `blocks` blocks."""
    read_list("token_ids", token_ids)
    if len(token_ids) != blocks * block_size:
        problem = (
            f"has {len(token_ids)} tokens for {blocks} block_hashes of {block_size} tokens: give "
            f"{blocks * block_size}, whole blocks only"
        )
        raise InvalidArgumentError("token_ids", problem)
    return local_hashes(
        token_ids, block_size, lora_name=lora_name, cache_salt=cache_salt, multimodal=multimodal
    )
