#include "weight.h"

#include "check.h"
#include "decode.h"
#include "mat.h"
#include "numerics.h"

#define TILE ESTREAM_TILE
/* More than any vocabulary or width, and few enough that no product below leaves 64 bits. */
#define MAX_LINES (1u << 20)

/* A block of Q6_K: low nibbles, upper pairs of bits, scales, their scale. */
#define Q6_K_LEN 256u
#define Q6_K_BYTES 210u
#define Q6_K_HIGH 128u
#define Q6_K_SCALES 192u
#define Q6_K_SCALE 208u

static const int8_t iq4_nl_levels[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113 };
/* Twice the numbers. */
static const int8_t mxfp4_levels[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* Bytes of a row; 0 if the layout has no rows, or none of that length. */
static uint32_t row_bytes(uint32_t layout, uint32_t cols)
{
    switch (layout) {
    case ESTREAM_F16_ROWS:
    case ESTREAM_BF16_ROWS:
        return 2 * cols;
    case ESTREAM_F32_ROWS:
        return 4 * cols;
    case ESTREAM_Q6_K_ROWS:
        return cols % Q6_K_LEN == 0 ? cols / Q6_K_LEN * Q6_K_BYTES : 0;
    default:
        return 0;
    }
}

enum estream_status weight_check(const struct memory *memory, const struct estream_weight *said,
                                 struct weight *weight)
{
    if (said->zero != 0)
        return ESTREAM_BAD_MESSAGE;
    if (said->rows == 0 || said->rows > MAX_LINES || said->cols == 0 || said->cols > MAX_LINES)
        return ESTREAM_BAD_SHAPE;
    struct weight found = {
        .layout = said->layout,
        .rows = said->rows,
        .cols = said->cols,
        .k_tiles = check_tiles(said->cols),
        .tile_bytes = decode_tile_bytes(said->layout),
        .row_bytes = row_bytes(said->layout, said->cols),
    };
    uint64_t bytes;
    if (found.tile_bytes != 0)
        bytes = (uint64_t)check_tiles(said->rows) * found.k_tiles * found.tile_bytes;
    else if (found.row_bytes != 0)
        bytes = (uint64_t)said->rows * found.row_bytes;
    else
        return said->layout == ESTREAM_Q6_K_ROWS ? ESTREAM_BAD_SHAPE : ESTREAM_BAD_LAYOUT;
    uint8_t *at;
    enum estream_status status = check_ref(memory, said->at, bytes, ESTREAM_ALIGN, &at);
    found.at = at;
    if (status == ESTREAM_OK)
        *weight = found;
    return status;
}

const uint8_t *weight_strip(const struct weight *weight, uint32_t strip)
{
    return weight->at + (uint64_t)strip * weight->k_tiles * weight->tile_bytes;
}

static float half_at(const uint8_t *bytes, uint32_t index)
{
    return hf_to_sf(((const uint16_t *)bytes)[index]);
}

static float bf16_at(const uint8_t *bytes, uint32_t index)
{
    return sf_of_bits((uint32_t)((const uint16_t *)bytes)[index] << 16);
}

/* 2^(e − 128), by which a doubled number of MXFP4 is multiplied. */
static float mxfp4_half_scale(uint8_t e)
{
    return sf_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static uint8_t nibble(const uint8_t *tile, int pair, uint32_t n, uint32_t k)
{
    if (pair)
        return tile[(k >> 1) * 32 + n] >> 4 * (k & 1) & 15;
    uint32_t t = k & 3, lane = (t & 1) << 1 | t >> 1;
    return tile[128 * (k >> 3) + 4 * n + lane] >> 4 * (k >> 2 & 1) & 15;
}

/* Row n of a tile. */
static void read_tile(uint32_t layout, const uint8_t *tile, uint32_t n, float out[32])
{
    const uint8_t *behind = tile + 512;
    int pair = layout == ESTREAM_Q4_0_PAIR || layout == ESTREAM_Q4_1_PAIR ||
               layout == ESTREAM_IQ4_NL_PAIR || layout == ESTREAM_MXFP4_PAIR;
    for (uint32_t k = 0; k < TILE; k++) {
        uint32_t at = mat_weight_index(k, n);
        switch (layout) {
        case ESTREAM_Q4_0_DIRECT:
        case ESTREAM_Q4_0_PAIR:
            out[k] = (float)(nibble(tile, pair, n, k) - 8) * half_at(behind, n);
            break;
        case ESTREAM_Q4_1_DIRECT:
        case ESTREAM_Q4_1_PAIR: {
            float product = (float)nibble(tile, pair, n, k) * half_at(behind, 2 * n);
            out[k] = product + half_at(behind, 2 * n + 1);
            break;
        }
        case ESTREAM_IQ4_NL_DIRECT:
        case ESTREAM_IQ4_NL_PAIR:
            out[k] = (float)iq4_nl_levels[nibble(tile, pair, n, k)] * half_at(behind, n);
            break;
        case ESTREAM_MXFP4_DIRECT:
        case ESTREAM_MXFP4_PAIR:
            out[k] = (float)mxfp4_levels[nibble(tile, pair, n, k)] * mxfp4_half_scale(behind[n]);
            break;
        case ESTREAM_Q8_0:
            out[k] = (float)((const int8_t *)tile)[at] * half_at(tile + 1024, n);
            break;
        case ESTREAM_F16:
            out[k] = half_at(tile, at);
            break;
        case ESTREAM_BF16:
            out[k] = bf16_at(tile, at);
            break;
        default:
            out[k] = ((const float *)tile)[at];
        }
    }
}

/* Element j of a block. */
static float q6_k(const uint8_t *block, uint32_t j)
{
    uint32_t half = j / 128, r = j % 128 / 32, i = j % 32;
    uint32_t low = block[half * 64 + r % 2 * 32 + i] >> 4 * (r / 2) & 15;
    uint32_t high = block[Q6_K_HIGH + half * 32 + i] >> 2 * r & 3;
    float scale = half_at(block + Q6_K_SCALE, 0) * (float)(int8_t)block[Q6_K_SCALES + j / 16];
    return scale * (float)((int32_t)(low | high << 4) - 32);
}

static float read_row(uint32_t layout, const uint8_t *row, uint32_t k)
{
    switch (layout) {
    case ESTREAM_F16_ROWS:
        return half_at(row, k);
    case ESTREAM_BF16_ROWS:
        return bf16_at(row, k);
    case ESTREAM_F32_ROWS:
        return ((const float *)row)[k];
    default:
        return q6_k(row + k / Q6_K_LEN * Q6_K_BYTES, k % Q6_K_LEN);
    }
}

void weight_read(const struct weight *weight, uint32_t row, uint32_t piece, float out[32])
{
    uint32_t first = TILE * piece;
    uint32_t count = weight->cols - first < TILE ? weight->cols - first : TILE;
    if (weight->tile_bytes != 0) {
        const uint8_t *tile = weight_strip(weight, row / TILE) + (uint64_t)piece * weight->tile_bytes;
        read_tile(weight->layout, tile, row % TILE, out);
    } else {
        const uint8_t *from = weight->at + (uint64_t)row * weight->row_bytes;
        for (uint32_t k = 0; k < count; k++)
            out[k] = read_row(weight->layout, from, first + k);
    }
    for (uint32_t k = count; k < TILE; k++)
        out[k] = 0.0f;
}
