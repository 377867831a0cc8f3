/* Stored tiles, schemas/src/layout.rs, to the order of mat.h: k pairs interleaved. */
#include "decode.h"

#include "abi.h"
#include "numerics.h"
#include "vec.h"

#define NIBBLE_BYTES 512u

/* Where clang has the last word about a loop, it stays one; GCC's names for that differ, and only
 * the loops on a device are counted. */
#ifdef __clang__
#define KEEP_LOOP _Pragma("clang loop unroll(disable)")
#else
#define KEEP_LOOP
#endif

/* A table of 16 FP16 as a look-up instruction wants it: in the low halves of the first words. */
#define TABLE(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                      \
    { a, 0, b, 0, c, 0, d, 0, e, 0, f, 0, g, 0, h, 0, i, 0, j, 0, k, 0, l, 0, m, 0, n, 0, o, 0, p, 0 }

typedef struct {
    _Alignas(128) uint16_t half[64];
} decode_table;

/* q − 8 */
static const decode_table q4_0_table = { TABLE(0xc800, 0xc700, 0xc600, 0xc500, 0xc400, 0xc200, 0xc000, 0xbc00,
                                               0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700) };
/* q */
static const decode_table q4_1_table = { TABLE(0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700,
                                               0x4800, 0x4880, 0x4900, 0x4980, 0x4a00, 0x4a80, 0x4b00, 0x4b80) };
/* −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89, 113 */
static const decode_table iq4_nl_table = { TABLE(0xd7f0, 0xd680, 0xd530, 0xd410, 0xd220, 0xd060, 0xcd80, 0xc900,
                                                 0x3c00, 0x4a80, 0x4e40, 0x50c0, 0x52a0, 0x5450, 0x5590, 0x5710) };
/* 0, 1, 2, 3, 4, 6, 8, 12 and their opposites, each divided by 32: twice E2M1's values, so that 40
 * exponents of the scale are enough for all that FP16 has (mxfp4_scale). */
static const decode_table mxfp4_table = { TABLE(0x0000, 0x2800, 0x2c00, 0x2e00, 0x3000, 0x3200, 0x3400, 0x3600,
                                                0x0000, 0xa800, 0xac00, 0xae00, 0xb000, 0xb200, 0xb400, 0xb600) };

uint32_t decode_tile_bytes(uint32_t layout)
{
    switch (layout) {
    case ESTREAM_Q4_0_DIRECT:
    case ESTREAM_Q4_0_PAIR:
    case ESTREAM_IQ4_NL_DIRECT:
    case ESTREAM_IQ4_NL_PAIR:
        return 576;
    case ESTREAM_Q4_1_DIRECT:
    case ESTREAM_Q4_1_PAIR:
        return 640;
    case ESTREAM_MXFP4_DIRECT:
    case ESTREAM_MXFP4_PAIR:
        return 544;
    case ESTREAM_Q8_0:
        return 1088;
    case ESTREAM_F16:
    case ESTREAM_BF16:
        return 2048;
    case ESTREAM_F32:
        return 4096;
    default:
        return 0;
    }
}

/* The loops. Low nibbles need no mask: the look-up ignores what is above its index. A look-up puts
 * even bytes in one vector and odd bytes in the other. */

static inline HVX_VectorPair look_up(HVX_Vector bytes, HVX_Vector table)
{
    return Q6_Wh_vlut16_VbVhR_nomatch(bytes, table, 0);
}

/* In `direct` order that is the matrix unit's order. */
#define DIRECT_LOOP(number)                                                                        \
    KEEP_LOOP                                                                                      \
    for (int group = 0; group < 4; group++) {                                                      \
        HVX_Vector bytes = stored[group];                                                          \
        HVX_VectorPair low = look_up(bytes, table);                                                \
        HVX_VectorPair high = look_up(Q6_Vub_vlsr_VubR(bytes, 4), table);                          \
        out[4 * group] = number(Q6_V_lo_W(low));                                                   \
        out[4 * group + 1] = number(Q6_V_hi_W(low));                                               \
        out[4 * group + 2] = number(Q6_V_lo_W(high));                                              \
        out[4 * group + 3] = number(Q6_V_hi_W(high));                                              \
    }

/* In `pair` order low and high nibbles must first alternate, and then the halves of each vector, so
 * that the look-up's parting of bytes undoes that. */
#define PAIR_LOOP(number)                                                                          \
    KEEP_LOOP                                                                                      \
    for (int group = 0; group < 4; group++) {                                                      \
        HVX_Vector bytes = stored[group];                                                          \
        HVX_VectorPair nibbles = Q6_W_vshuff_VVR(Q6_Vub_vlsr_VubR(bytes, 4), bytes, -1);           \
        HVX_VectorPair first = look_up(Q6_Vb_vshuff_Vb(Q6_V_lo_W(nibbles)), table);                \
        HVX_VectorPair second = look_up(Q6_Vb_vshuff_Vb(Q6_V_hi_W(nibbles)), table);               \
        out[4 * group] = number(Q6_V_lo_W(first));                                                 \
        out[4 * group + 1] = number(Q6_V_hi_W(first));                                             \
        out[4 * group + 2] = number(Q6_V_lo_W(second));                                            \
        out[4 * group + 3] = number(Q6_V_hi_W(second));                                            \
    }

#define SCALED(x) hf_mul(x, scale)
#define SCALED_OFFSET(x) hf_add(hf_mul(x, scale), offset)

__attribute__((noinline)) void decode_direct(const HVX_Vector *restrict stored, HVX_Vector table,
                                             HVX_Vector scale, HVX_Vector *restrict out)
{
    DIRECT_LOOP(SCALED)
}

__attribute__((noinline)) void decode_pair(const HVX_Vector *restrict stored, HVX_Vector table,
                                           HVX_Vector scale, HVX_Vector *restrict out)
{
    PAIR_LOOP(SCALED)
}

__attribute__((noinline)) void decode_direct_offset(const HVX_Vector *restrict stored,
                                                    HVX_Vector table, HVX_Vector scale,
                                                    HVX_Vector offset, HVX_Vector *restrict out)
{
    DIRECT_LOOP(SCALED_OFFSET)
}

__attribute__((noinline)) void decode_pair_offset(const HVX_Vector *restrict stored,
                                                  HVX_Vector table, HVX_Vector scale,
                                                  HVX_Vector offset, HVX_Vector *restrict out)
{
    PAIR_LOOP(SCALED_OFFSET)
}

/* Halves 0 … 31, one a row, each twice: for both elements of a k pair. */
static inline HVX_Vector each_twice(HVX_Vector rows)
{
    return Q6_V_lo_W(Q6_W_vshuff_VVR(rows, rows, -2));
}

/* 2^(e − 123) for 32 bytes e, those above 138 counting as 138. */
static inline HVX_Vector mxfp4_scale(HVX_Vector bytes)
{
    HVX_Vector one = Q6_Vh_vsplat_R(1);
    HVX_Vector e = Q6_V_lo_W(Q6_Wuh_vunpack_Vub(bytes));
    e = Q6_Vh_vmin_VhVh(e, Q6_Vh_vsplat_R(138));
    HVX_Vector field = Q6_Vh_vsub_VhVh(e, Q6_Vh_vsplat_R(123 - 15));
    /* Subnormal from field 0 down: the leading bit, which is 2^-14 there, goes right; at 11, off. */
    HVX_Vector down = Q6_Vh_vmax_VhVh(Q6_Vh_vsub_VhVh(one, field), Q6_V_vzero());
    down = Q6_Vh_vmin_VhVh(down, Q6_Vh_vsplat_R(11));
    HVX_Vector leading = Q6_Vh_vlsr_VhVh(Q6_Vh_vsplat_R(0x400), down);
    HVX_Vector above = Q6_Vh_vsub_VhVh(Q6_Vh_vmax_VhVh(field, one), one);
    return each_twice(Q6_Vh_vadd_VhVh(Q6_Vh_vasl_VhR(above, 10), leading));
}

static void q8_0_tile(const HVX_Vector *stored, HVX_Vector *out)
{
    HVX_Vector scale = each_twice(stored[8]);
    for (int i = 0; i < 8; i++) {
        HVX_VectorPair numbers = Q6_Wh_vunpack_Vb(stored[i]);
        out[2 * i] = hf_mul(hf_from_int(Q6_V_lo_W(numbers)), scale);
        out[2 * i + 1] = hf_mul(hf_from_int(Q6_V_hi_W(numbers)), scale);
    }
}

static void float_tile(uint32_t layout, const HVX_Vector *stored, HVX_Vector *out)
{
    for (int i = 0; i < 16; i++) {
        if (layout == ESTREAM_F16) {
            out[i] = stored[i];
        } else if (layout == ESTREAM_BF16) {
            /* The upper half of a binary32; the lanes of a vector are even and odd ones. */
            vec_sf even = sf_of_words(Q6_Vw_vasl_VwR(stored[i], 16));
            vec_sf odd = sf_of_words(Q6_V_vand_VV(stored[i], Q6_V_vsplat_R((int32_t)0xffff0000u)));
            out[i] = hf_narrow(even, odd);
        } else {
            /* 32 lanes are 16 k pairs: their even and odd ones apart. */
            HVX_VectorPair apart = Q6_W_vdeal_VVR(stored[2 * i + 1], stored[2 * i], -4);
            out[i] = hf_narrow(sf_of_words(Q6_V_lo_W(apart)), sf_of_words(Q6_V_hi_W(apart)));
        }
    }
}

static void tile(uint32_t layout, const HVX_Vector *stored, HVX_Vector *out)
{
    HVX_Vector behind = stored[NIBBLE_BYTES / HVX_BYTES];
    HVX_Vector word = Q6_V_vsplat_R(0xffff);
    switch (layout) {
    case ESTREAM_Q4_0_DIRECT:
        decode_direct(stored, *(const HVX_Vector *)&q4_0_table, each_twice(behind), out);
        break;
    case ESTREAM_Q4_0_PAIR:
        decode_pair(stored, *(const HVX_Vector *)&q4_0_table, each_twice(behind), out);
        break;
    case ESTREAM_IQ4_NL_DIRECT:
        decode_direct(stored, *(const HVX_Vector *)&iq4_nl_table, each_twice(behind), out);
        break;
    case ESTREAM_IQ4_NL_PAIR:
        decode_pair(stored, *(const HVX_Vector *)&iq4_nl_table, each_twice(behind), out);
        break;
    case ESTREAM_MXFP4_DIRECT:
        decode_direct(stored, *(const HVX_Vector *)&mxfp4_table, mxfp4_scale(behind), out);
        break;
    case ESTREAM_MXFP4_PAIR:
        decode_pair(stored, *(const HVX_Vector *)&mxfp4_table, mxfp4_scale(behind), out);
        break;
    case ESTREAM_Q4_1_DIRECT:
    case ESTREAM_Q4_1_PAIR: {
        /* A word a row: scale below, offset above; each to both halves. */
        HVX_Vector low = Q6_V_vand_VV(behind, word), high = Q6_Vuw_vlsr_VuwR(behind, 16);
        HVX_Vector scale = Q6_V_vor_VV(low, Q6_Vw_vasl_VwR(low, 16));
        HVX_Vector offset = Q6_V_vor_VV(high, Q6_Vw_vasl_VwR(high, 16));
        if (layout == ESTREAM_Q4_1_DIRECT)
            decode_direct_offset(stored, *(const HVX_Vector *)&q4_1_table, scale, offset, out);
        else
            decode_pair_offset(stored, *(const HVX_Vector *)&q4_1_table, scale, offset, out);
        break;
    }
    case ESTREAM_Q8_0:
        q8_0_tile(stored, out);
        break;
    default:
        float_tile(layout, stored, out);
    }
}

void decode_tiles(uint32_t layout, const uint8_t *stored, HVX_Vector *out, uint32_t tiles)
{
    uint32_t stride = decode_stride(decode_tile_bytes(layout));
    for (uint32_t i = 0; i < tiles; i++)
        tile(layout, (const HVX_Vector *)(stored + (uint64_t)i * stride), out + 16u * i);
}
