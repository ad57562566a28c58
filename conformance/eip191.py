"""The account that signed a text, as wallets sign (EIP-191), in Python alone: Keccak-256, and secp256k1.

Where it lies beside second_verifier.py, that runs it to check the signatures of receipts (docs/receipt.md).
"""

from __future__ import annotations

import struct


def keccak256(data: bytes) -> bytes:
    """Keccak-256, as Ethereum has it (with the first padding, 0x01)."""
    rate, mask = 136, 2**64 - 1
    data += b"\1" + bytes(-(len(data) + 1) % rate)
    data = data[:-1] + bytes([data[-1] | 0x80])
    lanes = [0] * 25  # lane x, y at x + 5 y
    for block in range(0, len(data), rate):
        for i, (word,) in enumerate(struct.iter_unpack("<Q", data[block : block + rate])):
            lanes[i] ^= word
        lfsr = 1
        for _ in range(24):
            parity = [lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20] for x in range(5)]
            for x in range(5):
                turned = parity[(x + 1) % 5]
                for y in range(0, 25, 5):
                    lanes[x + y] ^= parity[(x + 4) % 5] ^ (turned << 1 & mask | turned >> 63)
            x, y, held = 1, 0, lanes[1]
            for t in range(24):
                x, y = y, (2 * x + 3 * y) % 5
                turn = (t + 1) * (t + 2) // 2 % 64
                held, lanes[x + 5 * y] = lanes[x + 5 * y], held << turn & mask | held >> 64 - turn
            for y in range(0, 25, 5):
                row = lanes[y : y + 5]
                for x in range(5):
                    lanes[x + y] = row[x] ^ (~row[(x + 1) % 5] & mask & row[(x + 2) % 5])
            for j in range(7):
                lfsr = (lfsr << 1 ^ (lfsr >> 7) * 0x71) % 256
                lanes[0] ^= (lfsr >> 1 & 1) << (1 << j) - 1
    return struct.pack("<4Q", *lanes[:4])


FIELD = 2**256 - 2**32 - 977
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
Point = tuple[int, int] | None
GENERATOR: Point = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)


def add_points(p: Point, q: Point) -> Point:
    """The sum of two points of secp256k1, y^2 = x^3 + 7; None is the point at infinity."""
    if p is None or q is None:
        return p or q
    if p[0] == q[0] and (p[1] + q[1]) % FIELD == 0:
        return None
    slope = 3 * p[0] * p[0] * pow(2 * p[1], -1, FIELD) if p == q else (q[1] - p[1]) * pow(q[0] - p[0], -1, FIELD)
    x = (slope * slope - p[0] - q[0]) % FIELD
    return x, (slope * (p[0] - x) - p[1]) % FIELD


def multiply_point(p: Point, factor: int) -> Point:
    """A multiple of a point."""
    total: Point = None
    while factor:
        total = add_points(total, p) if factor & 1 else total
        p, factor = add_points(p, p), factor >> 1
    return total


def signer_of(text: bytes, signature: bytes) -> str:
    """The account that signed a text, 0x and 40 lower-case hex digits, by 65 bytes r, s, v. Raises ValueError where no
    account did, and for what is not the one form of a signature: s is at most half the order, and v 27 or 28."""
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    v, y = signature[64:], pow(r**3 + 7, (FIELD + 1) // 4, FIELD)
    if not (0 < r < ORDER and 0 < s <= ORDER // 2 and v in (b"\x1b", b"\x1c")) or (y * y - r**3 - 7) % FIELD:
        raise ValueError("The signature is none.")
    digest = int.from_bytes(keccak256(b"\x19Ethereum Signed Message:\n%d" % len(text) + text), "big")
    point = (r, y if y % 2 == v[0] % 27 else FIELD - y)
    inverse = pow(r, -1, ORDER)
    key = add_points(multiply_point(point, s * inverse % ORDER), multiply_point(GENERATOR, -digest * inverse % ORDER))
    if key is None:
        raise ValueError("The signature is none.")
    return "0x" + keccak256(key[0].to_bytes(32, "big") + key[1].to_bytes(32, "big"))[12:].hex()
