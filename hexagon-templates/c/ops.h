/* The operators that are not experts: each checks its descriptor, then runs it. Unless it says
 * otherwise, an operator that fails has written nothing. */
#ifndef ESTREAM_OPS_H
#define ESTREAM_OPS_H

#include "abi.h"
#include "memory.h"
#include "route.h"

struct route_fault embed_run(const struct estream_embed *op, const struct memory *memory);
struct route_fault linear_run(const struct estream_linear *op, const struct memory *memory);
struct route_fault rms_norm_run(const struct estream_rms_norm *op, const struct memory *memory);
struct route_fault rope_run(const struct estream_rope *op, const struct memory *memory);
struct route_fault attention_run(const struct estream_attention *op, const struct memory *memory);
struct route_fault mla_run(const struct estream_mla *op, const struct memory *memory);
struct route_fault short_conv_run(const struct estream_short_conv *op, const struct memory *memory);
struct route_fault add_run(const struct estream_add *op, const struct memory *memory);

/* Logits and routes may have been written where a score is not finite. */
struct route_fault router_run(const struct estream_router *op, const struct memory *memory);

static inline struct route_fault op_fault(enum estream_status status, uint32_t detail)
{
    return (struct route_fault){ .status = status, .detail = detail };
}

/* The n-th of `parts` nearly equal parts of `count` begins here. */
static inline uint32_t op_part(uint32_t count, uint32_t part, uint32_t parts)
{
    return (uint32_t)((uint64_t)count * part / parts);
}

#endif
