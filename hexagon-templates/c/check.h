/* Whether operands are where they are said to be. Nothing in a message is believed before. */
#ifndef ESTREAM_CHECK_H
#define ESTREAM_CHECK_H

#include "abi.h"
#include "memory.h"

/* `bytes` bytes at `ref`, at a multiple of `align`. */
enum estream_status check_ref(const struct memory *memory, struct estream_ref ref, uint64_t bytes,
                              uint32_t align, uint8_t **place);

/* `tokens` rows, whole vectors each. */
enum estream_status check_rows(const struct memory *memory, const struct estream_rows *rows,
                               uint32_t tokens, uint8_t **place);

/* Everything of an experts operator but what its lists say. */
enum estream_status check_experts(const struct estream_experts *op, const struct memory *memory);

/* Bytes of one projection of a record. */
uint64_t check_projection_bytes(const struct estream_projection *projection);

static inline uint32_t check_tiles(uint32_t elements)
{
    return elements / ESTREAM_TILE + (elements % ESTREAM_TILE != 0);
}

#endif
