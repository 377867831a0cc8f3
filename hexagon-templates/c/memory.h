/* The kernels' memory: buffers that the host shares, VTCM, and memory of their own. */
#ifndef ESTREAM_MEMORY_H
#define ESTREAM_MEMORY_H

#include <stdint.h>

#include "abi.h"

struct memory_buffer {
    uint8_t *base; /* a multiple of a page */
    uint32_t bytes;
};

struct memory {
    struct memory_buffer buffers[ESTREAM_MAX_BUFFERS]; /* those of the batch, in its order */
    uint32_t buffer_count;
    uint8_t *vtcm; /* a multiple of a page */
    uint32_t vtcm_bytes;
    uint8_t *scratch; /* nobody else sees it: what is checked there stays as it was */
    uint32_t scratch_bytes;
};

/* Words that may alias anything, and so be copied anywhere. */
typedef uint64_t __attribute__((may_alias)) memory_word;

/* Copies bytes; 8 at a time if everything is a multiple of that. There is no C library, and the
 * `volatile` keeps the compiler from calling one. */
static inline void memory_copy(void *to, const void *from, uint32_t bytes)
{
    if ((((uintptr_t)to | (uintptr_t)from | bytes) & 7u) == 0) {
        volatile memory_word *words = to;
        const memory_word *source = from;
        for (uint32_t i = 0; i < bytes / 8; i++)
            words[i] = source[i];
        return;
    }
    volatile uint8_t *out = to;
    const uint8_t *in = from;
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = in[i];
}

/* How a region of VTCM ends: a build may make what is left in it useless. */
#ifdef ESTREAM_ADVERSARIAL
void memory_ended(void *region, uint32_t bytes);
#else
static inline void memory_ended(void *region, uint32_t bytes)
{
    (void)region;
    (void)bytes;
}
#endif

#endif
