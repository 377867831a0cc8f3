/* Short causal convolution. */
#include "check.h"
#include "ops.h"
#include "rows.h"
#include "sync.h"

#define MAX_TAPS 64u

struct conv {
    const struct estream_short_conv *op;
    const uint8_t *x;
    uint8_t *out, *state;
    const float *weight;
};

/* B ⊙ X of row t, of the columns from `column` on. */
static vec_sf gated(const struct conv *conv, uint32_t t, uint32_t column, uint32_t count)
{
    const struct estream_short_conv *op = conv->op;
    const float *b = rows_of(conv->x, op->x.stride, t) + column;
    return sf_mul(rows_load(b, 1, count), rows_load(b + 2 * op->out.width, 1, count));
}

/* That of `back` rows before row t, which may be before the first. */
static vec_sf gated_before(const struct conv *conv, uint32_t t, uint32_t back, uint32_t column,
                           uint32_t count)
{
    const struct estream_short_conv *op = conv->op;
    if (t >= back)
        return gated(conv, t - back, column, count);
    uint32_t row = t + (op->taps - 1) - back;
    return rows_load(rows_of(conv->state, op->state.stride, row) + column, 1, count);
}

/* All rows of 32 columns, then their state. */
static void convolve(const struct conv *conv, uint32_t column)
{
    const struct estream_short_conv *op = conv->op;
    uint32_t width = op->out.width, taps = op->taps, n = rows_piece(width, column);
    for (uint32_t t = 0; t < op->tokens; t++) {
        vec_sf sum = sf_splat(0.0f);
        for (uint32_t k = 0; k < taps; k++) {
            vec_sf tap = rows_load(conv->weight + (uint64_t)column * taps + k, taps, n);
            vec_sf u = gated_before(conv, t, taps - 1 - k, column, n);
            sum = sf_add(sum, sf_mul(tap, u));
        }
        const float *c = rows_of(conv->x, op->x.stride, t) + width + column;
        float *out = rows_at(conv->out, op->out.stride, t) + column;
        rows_store(out, 1, n, sf_mul(sum, rows_load(c, 1, n)));
        rows_end(out, n);
    }
    /* Ascending, so that a row of the old state is read before it is written over. */
    for (uint32_t row = 0; row + 1 < taps; row++) {
        float *state = rows_at(conv->state, op->state.stride, row) + column;
        vec_sf u = gated_before(conv, op->tokens, taps - 1 - row, column, n);
        rows_store(state, 1, n, u);
        rows_end(state, n);
    }
}

static void convolve_columns(void *argument, uint32_t part, uint32_t parts)
{
    const struct conv *conv = argument;
    uint32_t pieces = check_tiles(conv->op->out.width);
    uint32_t end = op_part(pieces, part + 1, parts);
    for (uint32_t piece = op_part(pieces, part, parts); piece < end; piece++)
        convolve(conv, ROWS_LANES * piece);
}

struct route_fault short_conv_run(const struct estream_short_conv *op, const struct memory *memory)
{
    uint32_t width = op->out.width;
    uint8_t *x = 0, *out = 0, *state = 0, *weight = 0;
    enum estream_status status = check_rows(memory, &op->x, op->tokens, &x);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status == ESTREAM_OK && (op->x.width % 3 != 0 || op->x.width / 3 != width ||
                                 op->taps == 0 || op->taps > MAX_TAPS))
        status = ESTREAM_BAD_SHAPE;
    if (status == ESTREAM_OK && op->taps > 1) {
        status = check_rows(memory, &op->state, op->taps - 1, &state);
        if (status == ESTREAM_OK && op->state.width != width)
            status = ESTREAM_BAD_SHAPE;
    }
    if (status == ESTREAM_OK)
        status = check_ref(memory, op->weight, 4ull * width * op->taps, ESTREAM_ALIGN, &weight);
    if (status != ESTREAM_OK)
        return op_fault(status, 0);
    struct conv conv = { .op = op, .x = x, .out = out, .state = state, .weight = (const float *)weight };
    sync_share(convolve_columns, &conv);
    return op_fault(ESTREAM_OK, 0);
}
