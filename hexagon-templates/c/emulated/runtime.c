/* What a compiler for Hexagon calls where there are no instructions and no library: copying, filling,
 * and division of integers. */
#include "../memory.h"

void *memcpy(void *to, const void *from, unsigned long bytes);
void *memset(void *to, int value, unsigned long bytes);
void __hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *to, const void *from,
                                                           unsigned long bytes);
uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b);
uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b);
uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b);
uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b);

void *memcpy(void *to, const void *from, unsigned long bytes)
{
    memory_copy(to, from, (uint32_t)bytes);
    return to;
}

void *memset(void *to, int value, unsigned long bytes)
{
    volatile uint8_t *out = to;
    for (unsigned long i = 0; i < bytes; i++)
        out[i] = (uint8_t)value;
    return to;
}

void __hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *to, const void *from,
                                                           unsigned long bytes)
{
    memory_copy(to, from, (uint32_t)bytes);
}

/* Quotient by subtraction, from the divisor's greatest multiple by a power of two that fits. */
static uint64_t divide(uint64_t a, uint64_t b, uint64_t *rest)
{
    uint64_t quotient = 0;
    if (b != 0 && a >= b) {
        for (int shift = __builtin_clzll(b) - __builtin_clzll(a); shift >= 0; shift--) {
            if (a >= b << shift) {
                a -= b << shift;
                quotient |= (uint64_t)1 << shift;
            }
        }
    }
    *rest = a;
    return quotient;
}

uint64_t __hexagon_udivdi3(uint64_t a, uint64_t b)
{
    uint64_t rest;
    return divide(a, b, &rest);
}

uint64_t __hexagon_umoddi3(uint64_t a, uint64_t b)
{
    uint64_t rest;
    divide(a, b, &rest);
    return rest;
}

uint32_t __hexagon_udivsi3(uint32_t a, uint32_t b)
{
    return (uint32_t)__hexagon_udivdi3(a, b);
}

uint32_t __hexagon_umodsi3(uint32_t a, uint32_t b)
{
    return (uint32_t)__hexagon_umoddi3(a, b);
}
