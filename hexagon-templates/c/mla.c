/* Multi-head latent attention: a head's keys and values are products of the latent rows, made in
 * private memory, and then it is attention. */
#include "attention.h"
#include "check.h"
#include "numerics.h"
#include "ops.h"
#include "pool.h"
#include "product.h"
#include "rows.h"

struct mla {
    const struct estream_mla *op;
    struct weight kv_b;
    const uint8_t *q, *latent, *k_pe;
    uint8_t *out;
    uint8_t *expanded; /* [positions][the strips that have a head's rows] */
    uint32_t stride;
};

static uint32_t positions(const struct estream_mla *op)
{
    return op->position + op->tokens;
}

/* Rows of kv_b that a head has: those of its keys but for the rotated part, then of its values. */
static uint32_t head_rows(const struct estream_mla *op)
{
    return op->key_dim - op->k_pe.width + op->value_dim;
}

static enum estream_status run_head(const struct mla *mla, uint32_t head, const struct memory *memory)
{
    const struct estream_mla *op = mla->op;
    uint32_t rope = op->k_pe.width, nope = op->key_dim - rope;
    uint32_t first = head * head_rows(op), end = first + head_rows(op);
    uint32_t strip = first / ESTREAM_TILE;
    struct product product = {
        .weight = &mla->kv_b,
        .first_strip = strip,
        .strips = check_tiles(end) - strip,
        .tokens = positions(op),
        .x = mla->latent,
        .x_stride = op->latent.stride,
        .out = mla->expanded,
        .out_stride = mla->stride,
        .scale = 1.0f,
    };
    enum estream_status status = product_run(&product, memory);
    if (status != ESTREAM_OK)
        return status;
    const uint8_t *keys = mla->expanded + 4ull * (first - ESTREAM_TILE * strip);
    struct attention attention = {
        .tokens = op->tokens,
        .position = op->position,
        .heads = 1,
        .key_dim = op->key_dim,
        .scale = sf_of_bits(op->scale),
        .q = mla->q + 4ull * head * op->key_dim,
        .q_stride = op->q.stride,
        .out = mla->out + 4ull * head * op->value_dim,
        .out_stride = op->out.stride,
        .key = { { keys, mla->stride, nope }, { mla->k_pe, op->k_pe.stride, rope } },
        .value = { keys + 4ull * nope, mla->stride, op->value_dim },
    };
    return attention_run_group(&attention, memory);
}

static enum estream_status check(const struct estream_mla *op, const struct memory *memory,
                                 struct mla *mla)
{
    uint8_t *q = 0, *latent = 0, *k_pe = 0, *out = 0;
    if (op->position > ESTREAM_MAX_TOKENS)
        return ESTREAM_BAD_SHAPE;
    enum estream_status status = weight_check(memory, &op->kv_b, &mla->kv_b);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->q, op->tokens, &q);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->latent, positions(op), &latent);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->k_pe, positions(op), &k_pe);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status != ESTREAM_OK)
        return status;
    if (op->heads == 0 || op->value_dim == 0 || op->key_dim < op->k_pe.width ||
        (uint64_t)op->heads * op->key_dim != op->q.width ||
        (uint64_t)op->heads * op->value_dim != op->out.width ||
        (uint64_t)op->heads * head_rows(op) != op->kv_b.rows || op->latent.width != op->kv_b.cols)
        return ESTREAM_BAD_SHAPE;
    mla->q = q;
    mla->latent = latent;
    mla->k_pe = k_pe;
    mla->out = out;
    return ESTREAM_OK;
}

struct route_fault mla_run(const struct estream_mla *op, const struct memory *memory)
{
    struct mla mla = { .op = op };
    enum estream_status status = check(op, memory, &mla);
    if (status != ESTREAM_OK)
        return op_fault(status, 0);
    /* A head's rows begin anywhere in a strip: the longest stretch of strips that has them. */
    struct pool scratch = pool_of_scratch(memory);
    mla.stride = (check_tiles(head_rows(op)) + 1) * ESTREAM_ALIGN;
    mla.expanded = pool_take(&scratch, (uint64_t)mla.stride * positions(op));
    if (!mla.expanded)
        status = ESTREAM_NO_MEMORY;
    for (uint32_t head = 0; head < op->heads && status == ESTREAM_OK; head++)
        status = run_head(&mla, head, memory);
    for (uint32_t t = 0; t < op->tokens && status == ESTREAM_OK; t++)
        rows_end(rows_at(mla.out, op->out.stride, t), op->out.width);
    return op_fault(status, 0);
}
