"""Section 5 of docs/format.md: the bytes of a matrix, and the numbers they stand for."""

import math
import struct

# Types with a tile: bytes of scales a row has in it, and bits of a level. Without levels
# an element is a plain number of that many bytes.
TILED = {
    "q4_0": (2, 4), "q4_1": (4, 4), "iq4_nl": (2, 4), "mxfp4": (1, 4), "q8_0": (2, 8),
    "f32": (4, 0), "f16": (2, 0), "bf16": (2, 0),
}
# Rows: the elements and bytes of a block.
BLOCKS = {entry.split()[0]: tuple(map(int, entry.split()[1:])) for entry in """
    q4_0 32 18, iq4_nl 32 18, q4_1 32 20, mxfp4 32 17, q8_0 32 34, q6_k 256 210, q5_0 32 22,
    q5_1 32 24, q8_1 32 36, q2_k 256 84, q3_k 256 110, q4_k 256 144, q5_k 256 176,
    q8_k 256 292, nvfp4 64 36, q1_0 128 18, iq1_s 256 50, iq1_m 256 56, iq2_xxs 256 66, iq2_xs 256 74,
    iq2_s 256 82, iq3_xxs 256 98, iq3_s 256 110, iq4_xs 256 136, tq1_0 256 54, tq2_0 256 66,
    f64 1 8, f32 1 4, f16 1 2, bf16 1 2, f8_e4m3 1 1, f8_e5m2 1 1, i64 1 8, i32 1 4, i16 1 2,
    i8 1 1, u64 1 8, u32 1 4, u16 1 2, u8 1 1, bool 1 1""".split(",")}
IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)


class Refused(Exception):
    """The bundle breaks a rule of the format, or what was asked for is not in it."""


def need(condition, message):
    if not condition:
        raise Refused(message)


def tile_bytes(dtype):
    scales, bits = TILED[dtype]
    return 128 * bits + 32 * scales if bits else 1024 * scales


def layout_bytes(layout, rows, cols):
    dtype, _, form = layout.partition(".")
    need(0 < rows <= 1 << 24 and 0 < cols <= 1 << 24, f"a dimension of {rows} × {cols}")
    if form == "rows":
        need(dtype in BLOCKS, f"unknown layout {layout}")
        elements, size = BLOCKS[dtype]
        need(cols % elements == 0, f"{layout} with {cols} columns")
        return rows * (cols // elements) * size
    need(dtype in TILED and (TILED[dtype][1] == 4) == (form != "t32"), f"unknown {layout}")
    return -(-rows // 32) * -(-cols // 32) * tile_bytes(dtype)


def f32(value):
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def plain(dtype, data):
    if dtype == "bf16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    code, size = ("e", 2) if dtype == "f16" else ("f", 4)
    return struct.unpack(f"<{len(data) // size}{code}", data)


def scaled(dtype, scale, q):
    """Levels times their scale. f64 is exact here, so `f32` rounds just once."""
    if dtype == "mxfp4":
        need(scale[0] != 255, "an E8M0 scale is NaN")
        return [f32(math.ldexp(FP4[level], scale[0] - 127)) for level in q]
    d = struct.unpack_from("<e", scale)[0]
    if dtype == "q4_1":
        m = struct.unpack_from("<e", scale, 2)[0]
        return [f32(d * level + m) for level in q]
    if dtype == "iq4_nl":
        return [d * IQ4_NL[level] for level in q]
    return [d * (level - 8) for level in q] if dtype == "q4_0" else [d * level for level in q]


def q6_k(block):
    ql, qh, d = block[:128], block[128:192], struct.unpack_from("<e", block, 208)[0]
    sc, values = struct.unpack_from("<16b", block, 192), []
    for j in range(256):
        half, r, i = j // 128, j % 128 // 32, j % 32
        low = (ql[half * 64 + r % 2 * 32 + i] >> 4 * (r // 2)) & 15
        high = (qh[half * 32 + i] >> 2 * r) & 3
        values.append(d * sc[j // 16] * ((low | high << 4) - 32))
    return values


def block_values(dtype, block):
    if dtype == "q6_k":
        return q6_k(block)
    scales, bits = TILED[dtype]
    body = block[scales:]
    if bits == 8:
        return scaled(dtype, block, struct.unpack("<32b", body))
    return scaled(dtype, block, [b & 15 for b in body] + [b >> 4 for b in body])


def nibble(form, n, k):
    """The byte of element (n, k), and by how much to shift it."""
    if form == "t32.pair":
        return (k >> 1) * 32 + n, 4 * (k & 1)
    t = k & 3
    return 128 * (k >> 3) + 4 * n + (((t & 1) << 1) | (t >> 1)), 4 * ((k >> 2) & 1)


def tile_row(dtype, form, tile, n):
    """The 32 values of row n of a tile."""
    scales, bits = TILED[dtype]
    scale = tile[128 * bits + scales * n:][:scales]
    if bits == 4:
        places = (nibble(form, n, k) for k in range(32))
        return scaled(dtype, scale, [tile[byte] >> shift & 15 for byte, shift in places])
    index = [(k >> 1) * 64 + 2 * n + (k & 1) for k in range(32)]
    if bits == 8:
        q = struct.unpack_from("<1024b", tile)
        return scaled(dtype, scale, [q[i] for i in index])
    return plain(dtype, b"".join(tile[scales * i:scales * (i + 1)] for i in index))


def band(layout, cols):
    """What is read to see one row: a height in rows, and bytes. One row, or tiles of 32."""
    height = 1 if layout.endswith(".rows") else 32
    return height, layout_bytes(layout, height, cols)


def band_row(layout, cols, data, n):
    """Row n of the band in `data`."""
    dtype, _, form = layout.partition(".")
    if form == "rows" and dtype in ("f32", "f16", "bf16"):
        return plain(dtype, data)
    need(dtype in TILED or dtype == "q6_k", f"{dtype} is not decoded")
    step = BLOCKS[dtype][1] if form == "rows" else tile_bytes(dtype)
    pieces = (data[at:at + step] for at in range(0, len(data), step))
    if form == "rows":
        return [value for block in pieces for value in block_values(dtype, block)]
    return [value for tile in pieces for value in tile_row(dtype, form, tile, n)][:cols]
