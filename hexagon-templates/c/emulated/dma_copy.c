/* A DMA engine that is done when it has begun. */
#include "../dma.h"
#include "../memory.h"

static uint32_t started;

uint32_t dma_start(void *to, uint32_t to_stride, const void *from, uint32_t from_stride,
                   uint32_t row_bytes, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++)
        memory_copy((uint8_t *)to + (uint64_t)row * to_stride,
                    (const uint8_t *)from + (uint64_t)row * from_stride, row_bytes);
    return ++started;
}

void dma_wait(uint32_t ticket)
{
    (void)ticket;
}
