/* The matrix unit: products of FP16 tiles.
 *
 * Tiles are 32 × 32 halfwords, 2,048 bytes, in the orders the unit reads:
 *
 *     activation (m, k) and product (m, n)   (m >> 1) · 64 + 2k + (m & 1)   row pairs interleaved
 *     weight (k, n)                          (k >> 1) · 64 + 2n + (k & 1)   k pairs interleaved
 *
 * What is promised about numbers: docs/hexagon-numerics.md.
 */
#ifndef ESTREAM_MAT_H
#define ESTREAM_MAT_H

#include <stdint.h>

#define MAT_TILE_HALVES 1024u

static inline uint32_t mat_activation_index(uint32_t m, uint32_t k)
{
    return (m >> 1) * 64u + 2u * k + (m & 1u);
}

static inline uint32_t mat_weight_index(uint32_t k, uint32_t n)
{
    return (k >> 1) * 64u + 2u * n + (k & 1u);
}

/* Products of some rows with some strips of 32 output columns. */
struct mat_job {
    const uint16_t *activations; /* [row tiles][k_tiles] */
    const uint16_t *weights;     /* [strips][k_tiles] */
    uint16_t *out;               /* [strips][row tiles] */
    const void *scales;          /* what mat_prepare wrote */
    uint32_t rows;               /* rows that count, of ⌈rows/32⌉ tiles; the rest may be anything */
    uint32_t k_tiles;
    uint32_t strips;
};

/* Writes the unit's column scales, all 1, to 256 bytes of VTCM. */
void mat_prepare(void *scales);

/* Multiplies; `job` is a struct mat_job. sync.h says when. */
void mat_multiply(const void *job);

#endif
