/* dma.h by the user DMA engine of a hardware thread: descriptors in a chain that the engine walks.
 *
 * A descriptor of two dimensions is eight words. Up to v73 sizes and strides have 16 bits; from v75 on
 * 24, in other places.
 */
#include "../dma.h"

#include "../hvx.h"

#define DESCRIPTORS 32u

struct descriptor {
    uint32_t next;
    uint32_t control;
    uint32_t from;
    uint32_t to;
    uint32_t type;
    uint32_t sizes[3];
};

_Static_assert(sizeof(struct descriptor) == 32, "descriptor");

#define CONTROL_TWO_DIMENSIONS (1u << 24)
/* What is read is read past the cache: weights are used once, and the host wrote them. */
#define CONTROL_SOURCE_BYPASS (1u << 29)
#define CONTROL_DONE (1u << 31)

#if __HEXAGON_ARCH__ >= 75
#define TYPE 9u
#else
#define TYPE 0u
#endif
/* Rows have 16 bits in either. */
#define MAX_ROWS 0xffffu

static _Alignas(64) volatile struct descriptor ring[DESCRIPTORS];
static uint32_t started, done;

static uint32_t address(const volatile void *pointer)
{
    return (uint32_t)pointer;
}

static void finish_one(void)
{
    while ((ring[done % DESCRIPTORS].control & CONTROL_DONE) == 0)
        Q6_R_dmpoll();
    done++;
}

static void submit(uint32_t to, uint32_t to_stride, uint32_t from, uint32_t from_stride,
                   uint32_t row_bytes, uint32_t rows)
{
    while (started - done == DESCRIPTORS)
        finish_one();
    volatile struct descriptor *next = &ring[started % DESCRIPTORS];
    volatile struct descriptor *last = &ring[(started - 1u) % DESCRIPTORS];
    next->next = 0;
    next->from = from;
    next->to = to;
    next->type = TYPE;
#if __HEXAGON_ARCH__ >= 75
    next->control = CONTROL_TWO_DIMENSIONS | CONTROL_SOURCE_BYPASS | to_stride;
    next->sizes[0] = row_bytes | rows << 24;
    next->sizes[1] = rows >> 8 | from_stride << 8;
    next->sizes[2] = 0;
#else
    next->control = CONTROL_TWO_DIMENSIONS | CONTROL_SOURCE_BYPASS;
    next->sizes[0] = row_bytes | rows << 16;
    next->sizes[1] = from_stride | to_stride << 16;
    next->sizes[2] = 0;
#endif
    /* The descriptor is in memory before the engine is told of it. */
    __asm__ volatile("release(%0):at" : : "r"(next) : "memory");
    if (started == 0)
        Q6_dmstart_A((void *)next);
    else
        Q6_dmlink_AA((void *)last, (void *)next);
    started++;
}

uint32_t dma_start(void *to, uint32_t to_stride, const void *from, uint32_t from_stride,
                   uint32_t row_bytes, uint32_t rows)
{
    uint32_t target = address(to), source = address(from);
    while (rows > 0) {
        uint32_t some = rows < MAX_ROWS ? rows : MAX_ROWS;
        submit(target, to_stride, source, from_stride, row_bytes, some);
        target += some * to_stride;
        source += some * from_stride;
        rows -= some;
    }
    return started;
}

void dma_wait(uint32_t ticket)
{
    while ((int32_t)(ticket - done) > 0)
        finish_one();
}
