/* Products of rows with strips of a weight matrix: what `linear` and `mla` are made of. */
#ifndef ESTREAM_PRODUCT_H
#define ESTREAM_PRODUCT_H

#include "memory.h"
#include "weight.h"

/* out[t] = scale · (x[t] · weightᵀ) + bias, for output columns 32 · first_strip and on; the row
 * out[t] begins with the first of them. Rows of x and out are whole vectors. */
struct product {
    const struct weight *weight;
    uint32_t first_strip, strips;
    uint32_t tokens;
    const uint8_t *x;
    uint32_t x_stride;
    uint8_t *out;
    uint32_t out_stride;
    float scale;
    const float *bias; /* of all columns of the weight, or null */
};

/* Runs, or finds that VTCM is too small and writes nothing. */
enum estream_status product_run(const struct product *product, const struct memory *memory);

#endif
