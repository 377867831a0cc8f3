/* Linear: a product with a bias. */
#include "check.h"
#include "numerics.h"
#include "ops.h"
#include "product.h"

struct route_fault linear_run(const struct estream_linear *op, const struct memory *memory)
{
    struct weight weight;
    uint8_t *x = 0, *out = 0, *bias = 0;
    enum estream_status status = weight_check(memory, &op->weight, &weight);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->x, op->tokens, &x);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status == ESTREAM_OK && op->bias.buffer != ESTREAM_NONE)
        status = check_ref(memory, op->bias, 4ull * weight.rows, ESTREAM_ALIGN, &bias);
    if (status == ESTREAM_OK && (op->x.width != weight.cols || op->out.width != weight.rows))
        status = ESTREAM_BAD_SHAPE;
    if (status != ESTREAM_OK)
        return op_fault(status, 0);
    struct product product = {
        .weight = &weight,
        .strips = check_tiles(weight.rows),
        .tokens = op->tokens,
        .x = x,
        .x_stride = op->x.stride,
        .out = out,
        .out_stride = op->out.stride,
        .scale = sf_of_bits(op->scale),
        .bias = (const float *)bias,
    };
    return op_fault(product_run(&product, memory), 0);
}
