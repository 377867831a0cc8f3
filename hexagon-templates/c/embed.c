/* Embedding: rows of a table, by id. */
#include "check.h"
#include "numerics.h"
#include "ops.h"
#include "pool.h"
#include "rows.h"
#include "sync.h"
#include "weight.h"

struct embed {
    const struct estream_embed *op;
    const struct weight *table;
    const uint32_t *ids;
    uint8_t *out;
};

static void look_up(void *argument, uint32_t part, uint32_t parts)
{
    const struct embed *embed = argument;
    const struct estream_embed *op = embed->op;
    vec_sf scale = sf_splat(sf_of_bits(op->scale));
    uint32_t end = op_part(op->tokens, part + 1, parts);
    for (uint32_t t = op_part(op->tokens, part, parts); t < end; t++) {
        float *out = rows_at(embed->out, op->out.stride, t);
        for (uint32_t piece = 0; piece < embed->table->k_tiles; piece++) {
            _Alignas(HVX_BYTES) float values[ROWS_LANES];
            uint32_t first = ROWS_LANES * piece;
            weight_read(embed->table, embed->ids[t], piece, values);
            rows_store(out + first, 1, rows_piece(op->out.width, first),
                       sf_mul(sf_load(values), scale));
        }
        rows_end(out, op->out.width);
    }
}

struct route_fault embed_run(const struct estream_embed *op, const struct memory *memory)
{
    struct weight table;
    uint8_t *ids = 0, *out = 0;
    enum estream_status status = weight_check(memory, &op->table, &table);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status == ESTREAM_OK)
        status = check_ref(memory, op->ids, 4ull * op->tokens, ESTREAM_ALIGN, &ids);
    if (status == ESTREAM_OK && op->out.width != table.cols)
        status = ESTREAM_BAD_SHAPE;
    if (status != ESTREAM_OK)
        return op_fault(status, 0);

    /* Others may write to the list: it is read once. */
    struct pool scratch = pool_of_scratch(memory);
    uint32_t *own = pool_take(&scratch, 4ull * op->tokens);
    if (!own)
        return op_fault(ESTREAM_NO_MEMORY, op->tokens);
    memory_copy(own, ids, 4 * op->tokens);
    for (uint32_t t = 0; t < op->tokens; t++)
        if (own[t] >= table.rows)
            return op_fault(ESTREAM_BAD_RANGE, t);
    struct embed embed = { .op = op, .table = &table, .ids = own, .out = out };
    sync_share(look_up, &embed);
    return op_fault(ESTREAM_OK, 0);
}
