/* A DMA engine as unkind as one may be: what it will write is spoilt when a transfer begins, and is
 * there only when somebody has waited. */
#include "../dma.h"
#include "../memory.h"

struct transfer {
    uint8_t *to;
    const uint8_t *from;
    uint32_t to_stride, from_stride, row_bytes, rows;
};

static struct transfer ring[DMA_DEPTH];
static uint32_t started, done;

static void finish_one(void)
{
    const struct transfer *t = &ring[done++ % DMA_DEPTH];
    for (uint32_t row = 0; row < t->rows; row++)
        memory_copy(t->to + (uint64_t)row * t->to_stride,
                    t->from + (uint64_t)row * t->from_stride, t->row_bytes);
}

uint32_t dma_start(void *to, uint32_t to_stride, const void *from, uint32_t from_stride,
                   uint32_t row_bytes, uint32_t rows)
{
    if (started - done == DMA_DEPTH)
        finish_one();
    ring[started % DMA_DEPTH] = (struct transfer){
        .to = to,
        .from = from,
        .to_stride = to_stride,
        .from_stride = from_stride,
        .row_bytes = row_bytes,
        .rows = rows,
    };
    for (uint32_t row = 0; row < rows; row++)
        memory_ended((uint8_t *)to + (uint64_t)row * to_stride, row_bytes);
    return ++started;
}

void dma_wait(uint32_t ticket)
{
    while ((int32_t)(ticket - done) > 0)
        finish_one();
}
