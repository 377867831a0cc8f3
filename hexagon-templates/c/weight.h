/* A weight matrix where it lies: its extent, and its elements as numbers. */
#ifndef ESTREAM_WEIGHT_H
#define ESTREAM_WEIGHT_H

#include "abi.h"
#include "memory.h"

struct weight {
    const uint8_t *at;
    uint32_t layout; /* enum estream_layout */
    uint32_t rows, cols;
    uint32_t k_tiles;    /* tiles of a strip, or pieces of 32 elements of a row */
    uint32_t tile_bytes; /* 0 if it is stored in rows */
    uint32_t row_bytes;  /* 0 if it is stored in tiles */
};

/* Checks a descriptor. What it says stays true; what the bytes say may change at any time. */
enum estream_status weight_check(const struct memory *memory, const struct estream_weight *said,
                                 struct weight *weight);

/* The bytes of one strip of 32 rows, stored in tiles. */
const uint8_t *weight_strip(const struct weight *weight, uint32_t strip);

/* Elements 32 · piece and on of one row, each as the binary32 it stands for; zeros behind the
 * last. */
void weight_read(const struct weight *weight, uint32_t row, uint32_t piece, float out[32]);

#endif
