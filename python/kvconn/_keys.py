"""A fresh CURVE key pair for a probe: a secret of the system's random numbers, and its public key (X25519, RFC 7748).

The pair is used for one handshake and then forgotten. It protects nothing: a probe sends no message.
"""

import os

PRIME = 2**255 - 19
BASE = 9
A24 = 121665
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def pair() -> tuple[str, str]:
    """(public, secret) in Z85."""
    secret = os.urandom(32)
    return z85(public_of(secret)), z85(secret)


def public_of(secret: bytes) -> bytes:
    """The Montgomery ladder over the base point."""
    number = int.from_bytes(secret, "little") & ~7 & (2**255 - 1) | 2**254
    x2, z2, x3, z3 = 1, 0, BASE, 1
    for place in reversed(range(255)):
        bit = number >> place & 1
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        sum2, difference2 = x2 + z2, x2 - z2
        cross1, cross2 = (x3 - z3) * sum2, (x3 + z3) * difference2
        x3, z3 = (cross1 + cross2) ** 2 % PRIME, BASE * (cross1 - cross2) ** 2 % PRIME
        square1, square2 = sum2 * sum2 % PRIME, difference2 * difference2 % PRIME
        x2, z2 = square1 * square2 % PRIME, (square1 - square2) * (square1 + A24 * (square1 - square2)) % PRIME
        if bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def z85(data: bytes) -> str:
    """ZeroMQ's text of bytes, four at a time."""
    text = ""
    for at in range(0, len(data), 4):
        number = int.from_bytes(data[at : at + 4], "big")
        text += "".join(Z85[number // 85**power % 85] for power in reversed(range(5)))
    return text
