"""Validation of arguments. Errors name the argument."""

import math
import operator
import sys
from array import array
from collections.abc import Collection, Sequence

from kvasir.errors import InvalidArgumentError
from kvasir.limits import EVENT_BLOCKS_MAX, NAME_BYTES_MAX, SALT_BYTES_MAX
from kvasir.types import Tier

_U64 = (1 << 64) - 1
_I64_MIN = -(1 << 63)


def read_salt(field: str, value: str) -> str:
    """Validates a cache salt of at most `SALT_BYTES_MAX` bytes."""
    return read_name(field, value, limit=SALT_BYTES_MAX)


def read_name(
    field: str, value: str, *, required: bool = False, limit: int = NAME_BYTES_MAX
) -> str:
    """Validates a name of at most `limit` bytes."""
    if not isinstance(value, str):
        raise InvalidArgumentError(field, f"is {type(value).__name__}: give a str")
    if required and not value:
        raise InvalidArgumentError(field, "is empty: give 1 to 256 bytes")
    size = len(value.encode())
    if size > limit:
        problem = f"has {size} bytes: give at most {limit}"
        raise InvalidArgumentError(field, problem)
    return value


def read_int(field: str, value: int, lowest: int, highest: int) -> int:
    """Validates an integer from `lowest` to `highest`."""
    try:
        number = operator.index(value)
    except TypeError:
        problem = f"is {type(value).__name__}: give an integer"
        raise InvalidArgumentError(field, problem) from None
    if not lowest <= number <= highest:
        raise InvalidArgumentError(field, f"is {number}: give {lowest} to {highest}")
    return number


def read_seconds(field: str, value: float) -> float:
    """Validates a number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InvalidArgumentError(field, f"is {value!r}: give seconds, 0 or more")
    return float(value)


def read_fraction(field: str, value: float) -> float:
    """Validates a fraction from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidArgumentError(field, f"is {value!r}: give a number from 0 to 1")
    return float(value)


def read_number(field: str, value: float, lowest: float = -math.inf) -> float:
    """Validates a finite number, `lowest` or more."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < lowest:
        bound = "" if lowest == -math.inf else f", {lowest:g} or more"
        raise InvalidArgumentError(field, f"is {value!r}: give a finite number{bound}")
    return float(value)


def read_tier(field: str, value: Tier) -> Tier:
    """Validates a tier."""
    if not isinstance(value, Tier):
        raise InvalidArgumentError(field, f"is {value!r}: give a kvasir.Tier")
    return value


def read_list(field: str, values: Collection[object]) -> None:
    """Validates that a value has entries and a length, and is not text or bytes."""
    sized = hasattr(values, "__iter__") and hasattr(values, "__len__")
    if not sized or isinstance(values, (bytes, bytearray, memoryview, str)):
        raise InvalidArgumentError(field, f"is {type(values).__name__}: give a sequence")


def read_hash(field: str, value: int) -> int:
    """Validates a 64-bit hash, signed or unsigned. Returns its unsigned bits."""
    return read_int(field, value, _I64_MIN, _U64) & _U64


def read_hash_list(field: str, values: Sequence[int]) -> list[int]:
    """Validates 64-bit hashes, signed or unsigned. Returns their unsigned bits."""
    read_list(field, values)
    try:
        return array("Q", values).tolist()
    except (OverflowError, TypeError):
        # Some are negative or invalid.
        return [read_hash(f"{field}[{index}]", value) for index, value in enumerate(values)]


def read_hashes(field: str, values: Sequence[int]) -> list[int]:
    """Validates the hashes of one event: 1 to `EVENT_BLOCKS_MAX`."""
    hashes = read_hash_list(field, values)
    if not hashes:
        raise InvalidArgumentError(field, "is empty: give at least one")
    if len(hashes) > EVENT_BLOCKS_MAX:
        problem = f"has {len(hashes)} entries: give at most {EVENT_BLOCKS_MAX} in one event"
        raise InvalidArgumentError(field, problem)
    return hashes


def read_tokens(field: str, token_ids: Sequence[int]) -> bytes:
    """Packs tokens as little-endian u32, the form that is hashed."""
    return _packed(field, token_ids, "I", 1 << 32)


def read_wide_tokens(field: str, token_ids: Sequence[int]) -> tuple[bytes, int]:
    """Packs tokens as little-endian integers of 4 bytes, or 8 if some are beyond 32 bits."""
    try:
        return read_tokens(field, token_ids), 4
    except InvalidArgumentError:
        return _packed(field, token_ids, "Q", 1 << 64), 8


def _packed(field: str, token_ids: Sequence[int], code: str, limit: int) -> bytes:
    read_list(field, token_ids)
    try:
        packed = array(code, token_ids)
    except (OverflowError, TypeError):
        # The message gives the index of the invalid token, not its value: tokens are prompts.
        problem = f"integers from 0 to {limit - 1}"
        for index, token in enumerate(token_ids):
            if not isinstance(token, int) or not 0 <= token < limit:
                what = problem.replace("integers", "is not an integer", 1)
                raise InvalidArgumentError(f"{field}[{index}]", what) from None
        raise InvalidArgumentError(field, f"are not {problem}") from None
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()
