/* Attention of the query heads that share keys and values. */
#ifndef ESTREAM_ATTENTION_H
#define ESTREAM_ATTENTION_H

#include "memory.h"

/* Some elements of every row of keys or values. */
struct attention_part {
    const uint8_t *at;
    uint32_t stride;
    uint32_t width;
};

/* out = softmax(scale · q · kᵀ) · v, each query over the keys up to its own position. */
struct attention {
    uint32_t tokens;
    uint32_t position; /* of the first query; keys and values are those from position 0 on */
    uint32_t heads;    /* neighbours, in q as in out */
    uint32_t key_dim;  /* the sum of the widths of both parts of a key */
    float scale;
    const uint8_t *q;
    uint32_t q_stride;
    uint8_t *out;
    uint32_t out_stride;
    struct attention_part key[2]; /* one after the other; the second may be none */
    struct attention_part value;
};

/* Runs, or finds that VTCM is too small and writes nothing. */
enum estream_status attention_run_group(const struct attention *attention,
                                        const struct memory *memory);

#endif
