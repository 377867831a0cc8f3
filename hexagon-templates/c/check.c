#include "check.h"

#include "decode.h"

/* More than any model has, and few enough that no product below leaves 64 bits. */
#define MAX_WIDTH (1u << 20)

enum estream_status check_ref(const struct memory *memory, struct estream_ref ref, uint64_t bytes,
                              uint32_t align, uint8_t **place)
{
    if (ref.buffer >= memory->buffer_count)
        return ESTREAM_BAD_RANGE;
    const struct memory_buffer *buffer = &memory->buffers[ref.buffer];
    if (ref.offset > buffer->bytes || bytes > buffer->bytes - ref.offset)
        return ESTREAM_BAD_RANGE;
    if (ref.offset % align != 0)
        return ESTREAM_BAD_ALIGN;
    *place = buffer->base + ref.offset;
    return ESTREAM_OK;
}

enum estream_status check_rows(const struct memory *memory, const struct estream_rows *rows,
                               uint32_t tokens, uint8_t **place)
{
    if (rows->width == 0 || rows->width > MAX_WIDTH || tokens == 0 || tokens > ESTREAM_MAX_TOKENS)
        return ESTREAM_BAD_SHAPE;
    uint64_t row = (uint64_t)check_tiles(rows->width) * ESTREAM_ALIGN;
    if (rows->stride % ESTREAM_ALIGN != 0)
        return ESTREAM_BAD_ALIGN;
    if (rows->stride < row)
        return ESTREAM_BAD_SHAPE;
    uint64_t bytes = (uint64_t)rows->stride * (tokens - 1) + row;
    return check_ref(memory, rows->at, bytes, ESTREAM_ALIGN, place);
}

uint64_t check_projection_bytes(const struct estream_projection *projection)
{
    return (uint64_t)check_tiles(projection->rows) * check_tiles(projection->cols) *
           decode_tile_bytes(projection->layout);
}

static enum estream_status projection(const struct estream_projection *p)
{
    if (decode_tile_bytes(p->layout) == 0)
        return ESTREAM_BAD_LAYOUT;
    if (p->rows == 0 || p->rows > MAX_WIDTH || p->cols == 0 || p->cols > MAX_WIDTH)
        return ESTREAM_BAD_SHAPE;
    return p->stride % ESTREAM_ALIGN == 0 ? ESTREAM_OK : ESTREAM_BAD_ALIGN;
}

/* Lengths as abi.h has them. */
static enum estream_status plan(const struct estream_experts *op, const struct memory *memory)
{
    const struct estream_plan *plan = &op->plan;
    if (plan->zero != 0)
        return ESTREAM_BAD_MESSAGE;
    if (plan->rows == 0 || plan->rows % ESTREAM_TILE != 0 || plan->rows > ESTREAM_MAX_TOKENS ||
        plan->gate_up_strips == 0 || plan->gate_up_strips > MAX_WIDTH || plan->down_strips == 0 ||
        plan->down_strips > MAX_WIDTH || plan->vtcm_bytes > memory->vtcm_bytes)
        return ESTREAM_BAD_PLAN;
    uint64_t row_tiles = plan->rows / ESTREAM_TILE;
    uint64_t hidden = check_tiles(op->gate.cols), ff = check_tiles(op->gate.rows);
    uint64_t gate_up = plan->gate_up_strips * hidden, down = plan->down_strips * ff;
    uint64_t gate_stride = decode_stride(decode_tile_bytes(op->gate.layout));
    uint64_t up_stride = decode_stride(decode_tile_bytes(op->up.layout));
    uint64_t c = gate_up * (gate_stride > up_stride ? gate_stride : up_stride);
    uint64_t down_c = down * decode_stride(decode_tile_bytes(op->down.layout));
    uint64_t d = gate_up > down ? gate_up : down;
    uint64_t o = plan->gate_up_strips * row_tiles, down_o = plan->down_strips * row_tiles;
    const struct {
        uint64_t at, bytes;
        uint32_t align;
    } regions[] = {
        { plan->z, row_tiles * hidden * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->h, row_tiles * ff * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->c[0], c > down_c ? c : down_c, ESTREAM_ALIGN },
        { plan->c[1], c > down_c ? c : down_c, ESTREAM_ALIGN },
        { plan->d[0], d * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->d[1], d * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->o[0], (o > down_o ? o : down_o) * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->o[1], (o > down_o ? o : down_o) * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->o[2], o * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->o[3], o * ESTREAM_TILE_BYTES, ESTREAM_TILE_BYTES },
        { plan->scales, ESTREAM_SCALES_BYTES, ESTREAM_SCALES_BYTES },
    };
    const uint32_t count = sizeof regions / sizeof regions[0];
    for (uint32_t i = 0; i < count; i++) {
        if (regions[i].at % regions[i].align != 0 || regions[i].bytes > plan->vtcm_bytes ||
            regions[i].at > plan->vtcm_bytes - regions[i].bytes)
            return ESTREAM_BAD_PLAN;
        for (uint32_t j = 0; j < i; j++)
            if (regions[i].at < regions[j].at + regions[j].bytes &&
                regions[j].at < regions[i].at + regions[i].bytes)
                return ESTREAM_BAD_PLAN;
    }
    return ESTREAM_OK;
}

enum estream_status check_experts(const struct estream_experts *op, const struct memory *memory)
{
    const struct estream_projection *all[] = { &op->gate, &op->up, &op->down };
    for (uint32_t i = 0; i < 3; i++) {
        enum estream_status status = projection(all[i]);
        if (status != ESTREAM_OK)
            return status;
    }
    uint32_t hidden = op->gate.cols, ff = op->gate.rows;
    if (op->up.rows != ff || op->up.cols != hidden || op->down.rows != hidden ||
        op->down.cols != ff || op->x.width != hidden || op->y.width != hidden)
        return ESTREAM_BAD_SHAPE;
    if (op->experts == 0 || op->experts > ESTREAM_MAX_EXPERTS || op->entry_count == 0 ||
        op->entry_count > ESTREAM_MAX_ENTRIES || op->bank_count == 0 ||
        op->bank_count > ESTREAM_MAX_BANKS || op->bank_slots == 0 ||
        op->bank_slots > ESTREAM_MAX_ENTRIES || op->route_count > ESTREAM_MAX_ROUTES)
        return ESTREAM_BAD_SHAPE;
    return plan(op, memory);
}
