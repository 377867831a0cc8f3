/* Functions of vectors of binary32, made of the operations of vec.h. */
#ifndef ESTREAM_VEC_MATH_H
#define ESTREAM_VEC_MATH_H

#include "numerics.h"
#include "vec.h"

/* e^x: sf_exp, lane by lane. */
static inline vec_sf vec_exp(vec_sf x)
{
    x = sf_min(sf_max(x, sf_splat(EXP_LEAST)), sf_splat(EXP_MOST));
    vec_sf round = sf_splat(EXP_ROUND);
    vec_sf shifted = sf_add(sf_mul(x, sf_splat(EXP_LOG2_E)), round);
    vec_sf n = sf_sub(shifted, round);
    vec_sf r = sf_sub(x, sf_mul(n, sf_splat(EXP_LN2_HIGH)));
    r = sf_sub(r, sf_mul(n, sf_splat(EXP_LN2_LOW)));
    vec_sf one = sf_splat(1.0f);
    vec_sf p = sf_splat(EXP_5);
    p = sf_add(sf_mul(p, r), sf_splat(EXP_4));
    p = sf_add(sf_mul(p, r), sf_splat(EXP_3));
    p = sf_add(sf_mul(p, r), sf_splat(EXP_2));
    p = sf_add(sf_mul(p, r), one);
    p = sf_add(sf_mul(p, r), one);
    return sf_mul(p, sf_bits_add(sf_bits_shl(shifted, 23), 0x3f800000u));
}

/* What 1/x begins with: its bits are about this minus those of x. */
#define RECIPROCAL_START 0x7ef311c7u

/* 1/x for 1 ≤ x < 2^126. */
static inline vec_sf vec_reciprocal(vec_sf x)
{
    vec_sf two = sf_splat(2.0f);
    vec_sf r = sf_bits_from(RECIPROCAL_START, x);
    for (int i = 0; i < 3; i++)
        r = sf_mul(r, sf_sub(two, sf_mul(x, r)));
    return r;
}

/* g / (1 + e^(−g)) */
static inline vec_sf vec_silu(vec_sf g)
{
    vec_sf e = vec_exp(sf_sub(sf_splat(0.0f), g));
    return sf_mul(g, vec_reciprocal(sf_add(sf_splat(1.0f), e)));
}

#endif
