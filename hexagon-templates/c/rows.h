/* Rows of numbers, 32 at a time, wherever they begin: heads are not always whole vectors. */
#ifndef ESTREAM_ROWS_H
#define ESTREAM_ROWS_H

#include "vec.h"

#define ROWS_LANES 32u

static inline uint32_t rows_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Elements of a row of `width` that are left from `first` on, 32 at most. */
static inline uint32_t rows_piece(uint32_t width, uint32_t first)
{
    return rows_least(width - first, ROWS_LANES);
}

static inline int rows_is_vector(const float *place, uint32_t step, uint32_t count)
{
    return step == 1 && count == ROWS_LANES && ((uintptr_t)place & (HVX_BYTES - 1)) == 0;
}

/* `count` numbers that are `step` apart, and zeros behind them. */
static inline vec_sf rows_load(const float *from, uint32_t step, uint32_t count)
{
    if (rows_is_vector(from, step, count))
        return sf_load(from);
    _Alignas(HVX_BYTES) float lane[ROWS_LANES];
    for (uint32_t i = 0; i < ROWS_LANES; i++)
        lane[i] = i < count ? from[(uint64_t)i * step] : 0.0f;
    return sf_load(lane);
}

/* The first `count` lanes to places that are `step` apart. */
static inline void rows_store(float *to, uint32_t step, uint32_t count, vec_sf x)
{
    if (rows_is_vector(to, step, count)) {
        sf_store(to, x);
        return;
    }
    _Alignas(HVX_BYTES) float lane[ROWS_LANES];
    sf_store(lane, x);
    for (uint32_t i = 0; i < count; i++)
        to[(uint64_t)i * step] = lane[i];
}

/* Zeros from `width` to the end of the last vector of a row. */
static inline void rows_end(float *row, uint32_t width)
{
    for (uint32_t i = width; i % ROWS_LANES != 0; i++)
        row[i] = 0.0f;
}

/* Sum of the lanes, in halves: 16, 8, 4, 2, 1. */
static inline float rows_sum(vec_sf x)
{
    _Alignas(HVX_BYTES) float lane[ROWS_LANES];
    sf_store(lane, x);
    for (uint32_t half = ROWS_LANES / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

/* The greatest of the lanes. */
static inline float rows_greatest(vec_sf x)
{
    _Alignas(HVX_BYTES) float lane[ROWS_LANES];
    sf_store(lane, x);
    float greatest = lane[0];
    for (uint32_t i = 1; i < ROWS_LANES; i++)
        greatest = sf_greater(greatest, lane[i]);
    return greatest;
}

/* A matrix of rows: row t of it. */
static inline float *rows_at(uint8_t *first, uint32_t stride, uint32_t t)
{
    return (float *)(first + (uint64_t)t * stride);
}

static inline const float *rows_of(const uint8_t *first, uint32_t stride, uint32_t t)
{
    return (const float *)(first + (uint64_t)t * stride);
}

#endif
