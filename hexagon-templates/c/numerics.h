/* Arithmetic on single numbers, as docs/hexagon-numerics.md writes it down: the same bits from
 * every compiler and machine. No function of a platform is called. Compile with -ffp-contract=off.
 */
#ifndef ESTREAM_NUMERICS_H
#define ESTREAM_NUMERICS_H

#include <stdint.h>

static inline uint32_t sf_to_bits(float x)
{
    union { float f; uint32_t u; } both = { .f = x };
    return both.u;
}

static inline float sf_of_bits(uint32_t bits)
{
    union { uint32_t u; float f; } both = { .u = bits };
    return both.f;
}

/* Integers in the order of the numbers they are the bits of: negative numbers count down. */
static inline int32_t sf_rank(float x)
{
    int32_t bits = (int32_t)sf_to_bits(x);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

/* Greater and lesser of two numbers, +0 above −0. A comparison of floats would become an
 * instruction that each machine defines differently for zeros and NaN. */
static inline float sf_greater(float a, float b)
{
    return sf_rank(a) > sf_rank(b) ? a : b;
}

static inline float sf_lesser(float a, float b)
{
    return sf_rank(a) < sf_rank(b) ? a : b;
}

/* FP16 to binary32, exactly. */
static inline float hf_to_sf(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = half & 0x7fffu;
    if (rest >= 0x7c00u)
        return sf_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    /* With the exponent where binary32 has it, all that is missing is its other bias: a product,
     * which is exact for subnormal numbers too. */
    float scaled = sf_of_bits(rest << 13) * 0x1p112f;
    return sf_of_bits(sign | sf_to_bits(scaled));
}

/* Binary32 to FP16, to nearest, ties to even; infinite from 65,520 on. */
static inline uint16_t hf_of_sf(float x)
{
    uint32_t bits = sf_to_bits(x);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    /* Half of the least number, and less: zero. */
    if (size <= 0x33000000u)
        return (uint16_t)sign;
    uint32_t drop = 13, value = size - 0x38000000u;
    if (size < 0x38800000u) {
        drop = 126u - (size >> 23);
        value = (size & 0x7fffffu) | 0x800000u;
    }
    uint32_t half = (1u << (drop - 1)) - 1u + (value >> drop & 1u);
    return (uint16_t)(sign | (value + half) >> drop);
}

/* Square root of a number that is not negative, rounded to nearest. */
static inline float sf_sqrt(float x)
{
    uint32_t bits = sf_to_bits(x);
    if (bits == 0 || bits >= 0x7f800000u)
        return x;
    int32_t exponent = (int32_t)(bits >> 23);
    uint32_t significand = bits & 0x7fffffu;
    if (exponent == 0) {
        /* Subnormal: as if it had been normal. */
        exponent = 1;
        while (significand < 0x800000u) {
            significand <<= 1;
            exponent--;
        }
    } else {
        significand |= 0x800000u;
    }
    /* x = significand · 2^(exponent − 150); an even power of two leaves the root. */
    int32_t power = exponent - 150;
    uint64_t radicand = (uint64_t)significand << (power & 1 ? 25 : 26);
    power -= power & 1 ? 25 : 26;
    /* Its root has 25 bits: 24 and one to round by. It is never half way between two numbers. */
    uint64_t root = 0;
    for (uint64_t bit = (uint64_t)1 << 25; bit != 0; bit >>= 1) {
        uint64_t more = root | bit;
        if (more * more <= radicand)
            root = more;
    }
    uint32_t rounded = (uint32_t)((root + 1) >> 1);
    /* rounded is 2^23 … 2^24; its leading bit carries into the exponent. */
    return sf_of_bits(((uint32_t)(power / 2 + 1 + 149) << 23) + rounded);
}

/* What exp rounds with: adding it to a small number leaves the nearest integer in the low bits. */
#define EXP_ROUND 12582912.0f
/* Below and above this exp stays what it is there: a normal number, and so is its reciprocal. */
#define EXP_LEAST (-87.0f)
#define EXP_MOST 87.0f
#define EXP_LOG2_E 0x1.715476p+0f
/* ln 2 in two parts; the first has 16 bits, so that its products with integers are exact. */
#define EXP_LN2_HIGH 0x1.62e4p-1f
#define EXP_LN2_LOW 0x1.7f7d1cp-20f
/* e^r = 1 + r + r² · (EXP_2 + …) for |r| ≤ ln 2 / 2: the polynomial whose largest relative error,
 * 1.05e-7, is least. */
#define EXP_2 0x1.fffdfcp-2f
#define EXP_3 0x1.5557bp-3f
#define EXP_4 0x1.572a64p-5f
#define EXP_5 0x1.10625p-7f

/* e^x, each step rounded. vec_math.h does the same on vectors. */
static inline float sf_exp(float x)
{
    x = sf_lesser(sf_greater(x, EXP_LEAST), EXP_MOST);
    float shifted = x * EXP_LOG2_E + EXP_ROUND;
    float n = shifted - EXP_ROUND;
    float r = x - n * EXP_LN2_HIGH;
    r = r - n * EXP_LN2_LOW;
    float p = EXP_5;
    p = p * r + EXP_4;
    p = p * r + EXP_3;
    p = p * r + EXP_2;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * sf_of_bits((sf_to_bits(shifted) << 23) + 0x3f800000u);
}

#endif
