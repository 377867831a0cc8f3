/* Addition of a scaled register. */
#include "check.h"
#include "numerics.h"
#include "ops.h"
#include "rows.h"
#include "sync.h"

struct add {
    const struct estream_add *op;
    const uint8_t *x;
    uint8_t *out;
};

static void add_rows(void *argument, uint32_t part, uint32_t parts)
{
    const struct add *add = argument;
    const struct estream_add *op = add->op;
    vec_sf scale = sf_splat(sf_of_bits(op->scale));
    uint32_t end = op_part(op->tokens, part + 1, parts);
    for (uint32_t t = op_part(op->tokens, part, parts); t < end; t++) {
        const float *x = rows_of(add->x, op->x.stride, t);
        float *out = rows_at(add->out, op->out.stride, t);
        for (uint32_t i = 0; i < op->out.width; i += ROWS_LANES)
            sf_store(out + i, sf_add(sf_load(out + i), sf_mul(sf_load(x + i), scale)));
        rows_end(out, op->out.width);
    }
}

struct route_fault add_run(const struct estream_add *op, const struct memory *memory)
{
    uint8_t *x = 0, *out = 0;
    enum estream_status status = check_rows(memory, &op->x, op->tokens, &x);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status == ESTREAM_OK && op->x.width != op->out.width)
        status = ESTREAM_BAD_SHAPE;
    if (status != ESTREAM_OK)
        return op_fault(status, 0);
    struct add add = { .op = op, .x = x, .out = out };
    sync_share(add_rows, &add);
    return op_fault(ESTREAM_OK, 0);
}
