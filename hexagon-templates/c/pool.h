/* Memory handed out piece by piece: an operator's places in VTCM, or in the private memory. */
#ifndef ESTREAM_POOL_H
#define ESTREAM_POOL_H

#include "memory.h"

/* VTCM is two of these on the largest devices, and no tiles that the matrix unit walks may lie on
 * both sides of the border: operators that place tiles by themselves use the first. */
#define POOL_BANK_BYTES (4u << 20)

struct pool {
    uint8_t *next; /* a multiple of a tile */
    uint64_t left;
};

static inline struct pool pool_of_vtcm(const struct memory *memory)
{
    uint32_t bytes = memory->vtcm_bytes;
    return (struct pool){
        .next = memory->vtcm,
        .left = bytes < POOL_BANK_BYTES ? bytes : POOL_BANK_BYTES,
    };
}

static inline struct pool pool_of_scratch(const struct memory *memory)
{
    return (struct pool){ .next = memory->scratch, .left = memory->scratch_bytes };
}

/* The next bytes, rounded up to whole tiles of 2,048; null if there are not so many. */
static inline void *pool_take(struct pool *pool, uint64_t bytes)
{
    uint64_t whole = (bytes + ESTREAM_TILE_BYTES - 1) / ESTREAM_TILE_BYTES * ESTREAM_TILE_BYTES;
    if (whole > pool->left)
        return 0;
    void *place = pool->next;
    pool->next += whole;
    pool->left -= whole;
    return place;
}

#endif
