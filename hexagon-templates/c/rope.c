/* Rotary position embedding, by tables that the host makes. */
#include "check.h"
#include "ops.h"
#include "rows.h"
#include "sync.h"

struct rope {
    const struct estream_rope *op;
    uint8_t *x;
    const uint8_t *table;
};

/* The last `dims` elements of a head: element i of the first of each pair with i of the second. */
static void rotate(const struct estream_rope *op, float *head, const float *cosines,
                   const float *sines)
{
    uint32_t half = op->dims / 2;
    uint32_t step = op->adjacent ? 2 : 1, to_second = op->adjacent ? 1 : half;
    for (uint32_t i = 0; i < half; i += ROWS_LANES) {
        uint32_t n = rows_piece(half, i);
        float *first = head + step * i, *second = first + to_second;
        vec_sf a = rows_load(first, step, n), b = rows_load(second, step, n);
        vec_sf cos = rows_load(cosines + i, 1, n), sin = rows_load(sines + i, 1, n);
        rows_store(first, step, n, sf_sub(sf_mul(a, cos), sf_mul(b, sin)));
        rows_store(second, step, n, sf_add(sf_mul(b, cos), sf_mul(a, sin)));
    }
}

static void rotate_rows(void *argument, uint32_t part, uint32_t parts)
{
    const struct rope *rope = argument;
    const struct estream_rope *op = rope->op;
    uint32_t head_dim = op->x.width / op->heads, end = op_part(op->tokens, part + 1, parts);
    for (uint32_t t = op_part(op->tokens, part, parts); t < end; t++) {
        float *x = rows_at(rope->x, op->x.stride, t);
        const float *cosines = rows_of(rope->table, op->table.stride, t);
        for (uint32_t head = 1; head <= op->heads; head++)
            rotate(op, x + head * head_dim - op->dims, cosines, cosines + op->dims / 2);
    }
}

struct route_fault rope_run(const struct estream_rope *op, const struct memory *memory)
{
    uint8_t *x = 0, *table = 0;
    enum estream_status status = op->adjacent <= 1 ? ESTREAM_OK : ESTREAM_BAD_MESSAGE;
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->x, op->tokens, &x);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->table, op->tokens, &table);
    if (status == ESTREAM_OK &&
        (op->heads == 0 || op->x.width % op->heads != 0 || op->dims == 0 || op->dims % 2 != 0 ||
         op->dims > op->x.width / op->heads || op->table.width != op->dims))
        status = ESTREAM_BAD_SHAPE;
    if (status != ESTREAM_OK)
        return op_fault(status, 0);
    struct rope rope = { .op = op, .x = x, .table = table };
    sync_share(rotate_rows, &rope);
    return op_fault(ESTREAM_OK, 0);
}
