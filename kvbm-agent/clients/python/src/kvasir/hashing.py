"""Hashes the blocks of a prompt, bit for bit as the index does."""

from collections.abc import Iterable, Sequence

import xxhash

from kvasir._check import read_hash_list, read_int, read_list, read_name, read_tokens
from kvasir.errors import InvalidArgumentError
from kvasir.limits import BLOCK_SIZE_TOKENS_MAX
from kvasir.types import MultimodalItem

HASH_SCHEME = "xxh3-64/1337"
"""Name of the hash scheme. Requests state it, and the index checks it."""

_SEED = 1337
_U64 = (1 << 64) - 1
_TOKEN_BYTES = 4


def _seed(lora_name: str, cache_salt: str) -> int:
    seed = _SEED
    if read_name("lora_name", lora_name):
        seed += xxhash.xxh3_64_intdigest(lora_name.encode(), seed=0)
    if read_name("cache_salt", cache_salt):
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
    """Hashes of a prompt's whole blocks, independent of the blocks before them.

    Tokens after the last whole block are ignored. Raises `InvalidArgumentError`.
    """
    size = read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
    packed = read_tokens("token_ids", token_ids)
    seed = _seed(lora_name, cache_salt)
    step = size * _TOKEN_BYTES
    blocks = len(packed) // step
    digest = xxhash.xxh3_64_intdigest
    view = memoryview(packed)
    if not multimodal:
        return [digest(view[at : at + step], seed=seed) for at in range(0, blocks * step, step)]
    extras: list[list[int]] = [[] for _ in range(blocks)]
    for start, end, item in _spans(multimodal, len(packed) // _TOKEN_BYTES):
        for block in range(start // size, min((end - 1) // size + 1, blocks)):
            extras[block].append(item)
    hashes = []
    for block, items in enumerate(extras):
        content = b"".join(item.to_bytes(8, "little") for item in sorted(items))
        hashes.append(digest(packed[block * step : (block + 1) * step] + content, seed=seed))
    return hashes


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
