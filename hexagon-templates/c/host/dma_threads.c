/* A DMA engine that really copies meanwhile: a thread a transfer. */
#include <pthread.h>

#include "../dma.h"
#include "../memory.h"

struct transfer {
    pthread_t thread;
    uint8_t *to;
    const uint8_t *from;
    uint32_t to_stride, from_stride, row_bytes, rows;
};

static struct transfer ring[DMA_DEPTH];
static uint32_t started, done;

static void *copy(void *argument)
{
    const struct transfer *t = argument;
    for (uint32_t row = 0; row < t->rows; row++)
        memory_copy(t->to + (uint64_t)row * t->to_stride,
                    t->from + (uint64_t)row * t->from_stride, t->row_bytes);
    return 0;
}

uint32_t dma_start(void *to, uint32_t to_stride, const void *from, uint32_t from_stride,
                   uint32_t row_bytes, uint32_t rows)
{
    if (started - done == DMA_DEPTH)
        dma_wait(done + 1);
    struct transfer *t = &ring[started % DMA_DEPTH];
    t->to = to;
    t->from = from;
    t->to_stride = to_stride;
    t->from_stride = from_stride;
    t->row_bytes = row_bytes;
    t->rows = rows;
    if (pthread_create(&t->thread, 0, copy, t) != 0)
        __builtin_trap();
    return ++started;
}

void dma_wait(uint32_t ticket)
{
    for (; (int32_t)(ticket - done) > 0; done++)
        pthread_join(ring[done % DMA_DEPTH].thread, 0);
}
