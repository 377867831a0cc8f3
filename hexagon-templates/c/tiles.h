/* Rows of numbers to tiles of the matrix unit, rounded to FP16. */
#ifndef ESTREAM_TILES_H
#define ESTREAM_TILES_H

#include "mat.h"
#include "numerics.h"
#include "rows.h"

/* One vector of a tile: two rows, times `scale`, 32 elements of each from `first` on. They are rows
 * of activations, or elements 2i and 2i + 1 of the reduction that a weight tile has in its rows. A
 * row that is not there (null) is zeros. */
static inline HVX_Vector tiles_pair(const float *even, const float *odd, uint32_t first,
                                    uint32_t width, float scale)
{
    uint32_t count = rows_piece(width, first);
    vec_sf zero = sf_splat(0.0f), factor = sf_splat(scale);
    vec_sf below = even ? sf_mul(rows_load(even + first, 1, count), factor) : zero;
    vec_sf above = odd ? sf_mul(rows_load(odd + first, 1, count), factor) : zero;
    return hf_narrow(below, above);
}

/* Output column n of a strip of weight tiles: `count` elements of the reduction from `first` on, or
 * zeros (null). */
static inline void tiles_column(uint16_t *strip, uint32_t n, uint32_t first, const float *values,
                                uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = first + i;
        uint16_t *tile = strip + k / 32 * MAT_TILE_HALVES;
        tile[mat_weight_index(k % 32, n)] = values ? hf_of_sf(values[i]) : 0;
    }
}

#endif
