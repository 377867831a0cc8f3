/* Moving bytes between memory and VTCM while the processor does something else.
 *
 * There is one engine, and one thread that uses it. What a transfer writes may be looked at, and
 * what it reads may be changed, after dma_wait has returned for it: not before.
 */
#ifndef ESTREAM_DMA_H
#define ESTREAM_DMA_H

#include <stdint.h>

/* Transfers that may be under way at once. */
#define DMA_DEPTH 4u

/* Begins to copy `rows` rows of `row_bytes` each, and returns a ticket for them. At most
 * DMA_DEPTH − 1 earlier transfers may not have been waited for. */
uint32_t dma_start(void *to, uint32_t to_stride, const void *from, uint32_t from_stride,
                   uint32_t row_bytes, uint32_t rows);

/* Returns when that transfer, and with it every earlier one, is done. */
void dma_wait(uint32_t ticket);

#endif
