/* RMS norm, of whole rows or of each head of them. */
#include "check.h"
#include "numerics.h"
#include "ops.h"
#include "rows.h"
#include "sync.h"

struct norm {
    const struct estream_rms_norm *op;
    const uint8_t *x;
    uint8_t *out;
    const float *weight;
};

/* 1/sqrt(mean(x²) + eps); not a number if the squares overflow, since zeros for numbers that are too
 * large would be taken for a result. */
static float inverse_rms(const float *x, uint32_t count, float eps)
{
    vec_sf sums = sf_splat(0.0f);
    for (uint32_t i = 0; i < count; i += ROWS_LANES) {
        vec_sf piece = rows_load(x + i, 1, rows_piece(count, i));
        sums = sf_add(sums, sf_mul(piece, piece));
    }
    float mean = rows_sum(sums) / (float)count;
    if (sf_to_bits(mean) == 0x7f800000u)
        return sf_of_bits(0x7fc00000u);
    return 1.0f / sf_sqrt(mean + eps);
}

static void norm_rows(void *argument, uint32_t part, uint32_t parts)
{
    const struct norm *norm = argument;
    const struct estream_rms_norm *op = norm->op;
    uint32_t count = op->weight_len, end = op_part(op->tokens, part + 1, parts);
    for (uint32_t t = op_part(op->tokens, part, parts); t < end; t++) {
        float *out = rows_at(norm->out, op->out.stride, t);
        for (uint32_t first = 0; first < op->x.width; first += count) {
            const float *x = rows_of(norm->x, op->x.stride, t) + first;
            vec_sf factor = sf_splat(inverse_rms(x, count, sf_of_bits(op->eps)));
            for (uint32_t i = 0; i < count; i += ROWS_LANES) {
                uint32_t n = rows_piece(count, i);
                vec_sf scaled = sf_mul(rows_load(x + i, 1, n), factor);
                scaled = sf_mul(scaled, rows_load(norm->weight + i, 1, n));
                rows_store(out + first + i, 1, n, scaled);
            }
        }
        rows_end(out, op->out.width);
    }
}

struct route_fault rms_norm_run(const struct estream_rms_norm *op, const struct memory *memory)
{
    uint8_t *x = 0, *out = 0, *weight = 0;
    enum estream_status status = op->zero == 0 ? ESTREAM_OK : ESTREAM_BAD_MESSAGE;
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->x, op->tokens, &x);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status == ESTREAM_OK && (op->x.width != op->out.width || op->weight_len == 0 ||
                                 op->x.width % op->weight_len != 0))
        status = ESTREAM_BAD_SHAPE;
    if (status == ESTREAM_OK)
        status = check_ref(memory, op->weight, 4ull * op->weight_len, ESTREAM_ALIGN, &weight);
    if (status != ESTREAM_OK)
        return op_fault(status, 0);
    struct norm norm = { .op = op, .x = x, .out = out, .weight = (const float *)weight };
    sync_share(norm_rows, &norm);
    return op_fault(ESTREAM_OK, 0);
}
