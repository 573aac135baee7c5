"""XXH3, 64 bits, without a seed (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): the data sets are split by it."""

import struct

_MASK = (1 << 64) - 1
_PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_LAST_ACCUMULATE, _MERGE = 7, 11  # where in the secret the last stripe and the end begin
_STRIPE = 64


def _u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a, b):
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value):
    value ^= value >> 37
    value = value * 0x165667919E3779F9 & _MASK
    return value ^ value >> 32


def _xxh64_avalanche(value):
    value ^= value >> 33
    value = value * _PRIME64[1] & _MASK
    value ^= value >> 29
    value = value * _PRIME64[2] & _MASK
    return value ^ value >> 32


def _mix16(data, at, secret_at):
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _up_to_16(data):
    size = len(data)
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high) & _MASK)
    if size >= 4:
        value = (_u32(data, size - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        value ^= (value << 49 | value >> 15) & _MASK ^ (value << 24 | value >> 40) & _MASK
        value = value * 0x9FB21C651E98DF25 & _MASK
        value ^= (value >> 35) + size
        value = value * 0x9FB21C651E98DF25 & _MASK
        return value ^ value >> 28
    if size > 0:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _xxh64_avalanche(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _xxh64_avalanche(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _up_to_240(data):
    size = len(data)
    value = size * _PRIME64[0]
    if size <= 128:
        for i in range((size - 1) // 32 + 1):
            value += _mix16(data, 16 * i, 32 * i) + _mix16(data, size - 16 * (i + 1), 32 * i + 16)
        return _avalanche(value & _MASK)
    for i in range(8):
        value += _mix16(data, 16 * i, 16 * i)
    value = _avalanche(value & _MASK)
    for i in range(8, size // 16):
        value += _mix16(data, 16 * i, 16 * (i - 8) + 3)
    return _avalanche(value + _mix16(data, size - 16, 136 - 17) & _MASK)


def _accumulate(sums, stripe, secret):
    for i, (lane, key) in enumerate(zip(struct.unpack("<8Q", stripe), struct.unpack("<8Q", secret))):
        keyed = lane ^ key
        sums[i ^ 1] = sums[i ^ 1] + lane & _MASK
        sums[i] = sums[i] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & _MASK


def _long(data):
    sums = [_PRIME32[2], *_PRIME64[:4], _PRIME32[1], _PRIME64[4], _PRIME32[0]]
    stripes_a_block = (len(_SECRET) - _STRIPE) // 8
    for stripe in range((len(data) - 1) // _STRIPE):
        place = stripe % stripes_a_block
        _accumulate(sums, data[_STRIPE * stripe : _STRIPE * (stripe + 1)], _SECRET[8 * place : 8 * place + _STRIPE])
        if place == stripes_a_block - 1:
            for i, key in enumerate(struct.unpack("<8Q", _SECRET[-_STRIPE:])):
                sums[i] = (sums[i] ^ sums[i] >> 47 ^ key) * _PRIME32[0] & _MASK
    _accumulate(sums, data[-_STRIPE:], _SECRET[-_STRIPE - _LAST_ACCUMULATE : -_LAST_ACCUMULATE])
    value = len(data) * _PRIME64[0]
    for i in range(4):
        value += _fold(sums[2 * i] ^ _u64(_SECRET, _MERGE + 16 * i), sums[2 * i + 1] ^ _u64(_SECRET, _MERGE + 16 * i + 8))
    return _avalanche(value & _MASK)


def xxh3_64(data):
    """The hash of bytes, a number of 64 bits."""
    if len(data) <= 16:
        return _up_to_16(data)
    return _up_to_240(data) if len(data) <= 240 else _long(data)
