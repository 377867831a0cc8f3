/* vec.h without floating-point vectors: FP16 by integer vectors, binary32 by numbers one at a time.
 * This is the contract itself (docs/hexagon-numerics.md), and what runs in the emulator, which
 * executes integer vectors alone.
 */
#ifndef ESTREAM_VEC_INT_H
#define ESTREAM_VEC_INT_H

#include "../numerics.h"

typedef struct {
    _Alignas(128) float lane[32];
} vec_sf;

typedef union {
    HVX_Vector vector;
    uint16_t half[64];
} vec_halves;

/* What is FP16 apart from its sign, in lanes of 16 bits: significand · 2^(exponent − 25). */
typedef struct {
    HVX_Vector significand;
    HVX_Vector exponent;
} vec_parts;

static inline vec_parts hf_parts(vec_hf x)
{
    HVX_Vector field = Q6_V_vand_VV(Q6_Vuh_vlsr_VuhR(x, 10), Q6_Vh_vsplat_R(31));
    HVX_Vector one = Q6_Vh_vsplat_R(1);
    HVX_Vector leading = Q6_Vh_vasl_VhR(Q6_Vh_vmin_VhVh(field, one), 10);
    vec_parts parts = {
        .significand = Q6_V_vor_VV(Q6_V_vand_VV(x, Q6_Vh_vsplat_R(0x3ff)), leading),
        .exponent = Q6_Vh_vmax_VhVh(field, one),
    };
    return parts;
}

/* Lanes of 16 bits, signed, to lanes of 32: the even ones, the odd ones. */
static inline HVX_Vector vec_even(HVX_Vector h)
{
    return Q6_Vw_vasr_VwR(Q6_Vw_vasl_VwR(h, 16), 16);
}

static inline HVX_Vector vec_odd(HVX_Vector h)
{
    return Q6_Vw_vasr_VwR(h, 16);
}

/* FP16 nearest to magnitude · 2^exponent, ties to even, in lanes of 32 bits. Magnitudes are below
 * 2^29; that of zero needs an exponent below −13.
 *
 * The leading bit goes to bit 28. 11 bits are kept, or fewer where the result is subnormal: from 30
 * bits dropped on nothing is left, and nothing is rounded up.
 */
static inline HVX_Vector hf_round(HVX_Vector magnitude, HVX_Vector exponent)
{
    HVX_Vector one = Q6_V_vsplat_R(1);
    HVX_Vector zeros = Q6_Vuw_vcl0_Vuw(magnitude);
    HVX_Vector field =
        Q6_Vw_vsub_VwVw(Q6_Vw_vadd_VwVw(exponent, Q6_V_vsplat_R(46)), zeros);
    HVX_Vector kept = Q6_Vw_vmax_VwVw(field, one);
    HVX_Vector drop = Q6_Vw_vsub_VwVw(Q6_Vw_vadd_VwVw(kept, Q6_V_vsplat_R(18)), field);
    drop = Q6_Vw_vmin_VwVw(drop, Q6_V_vsplat_R(30));
    HVX_Vector value =
        Q6_Vw_vasl_VwVw(magnitude, Q6_Vw_vsub_VwVw(zeros, Q6_V_vsplat_R(3)));
    HVX_Vector last = Q6_V_vand_VV(Q6_Vw_vlsr_VwVw(value, drop), one);
    HVX_Vector half = Q6_Vw_vasl_VwVw(one, Q6_Vw_vsub_VwVw(drop, one));
    HVX_Vector rounded =
        Q6_Vw_vadd_VwVw(Q6_Vw_vadd_VwVw(value, last), Q6_Vw_vsub_VwVw(half, one));
    rounded = Q6_Vw_vlsr_VwVw(rounded, drop);
    /* The leading bit of a normal number carries into its exponent, and so does rounding. */
    HVX_Vector bits =
        Q6_Vw_vadd_VwVw(Q6_Vw_vasl_VwR(Q6_Vw_vsub_VwVw(kept, one), 10), rounded);
    return Q6_Vw_vmin_VwVw(bits, Q6_V_vsplat_R(0x7c00));
}

static inline vec_hf hf_mul(vec_hf a, vec_hf b)
{
    vec_parts left = hf_parts(a), right = hf_parts(b);
    HVX_VectorPair product = Q6_Wuw_vmpy_VuhVuh(left.significand, right.significand);
    HVX_Vector exponent = Q6_Vh_vsub_VhVh(Q6_Vh_vadd_VhVh(left.exponent, right.exponent),
                                          Q6_Vh_vsplat_R(50));
    HVX_Vector even = hf_round(Q6_V_lo_W(product), vec_even(exponent));
    HVX_Vector odd = hf_round(Q6_V_hi_W(product), vec_odd(exponent));
    HVX_Vector sign = Q6_V_vand_VV(Q6_V_vxor_VV(a, b), Q6_Vh_vsplat_R(0x8000));
    return Q6_V_vor_VV(Q6_Vh_vshuffe_VhVh(odd, even), sign);
}

/* One half of hf_add, in lanes of 32 bits. Both operands are brought to the greater exponent with
 * 17 bits to spare; of what is shifted out no more than that it was not zero matters. */
static inline HVX_Vector hf_aligned(HVX_Vector significand, HVX_Vector down)
{
    HVX_Vector value = Q6_Vw_vasl_VwR(significand, 17);
    HVX_Vector shifted = Q6_Vw_vlsr_VwVw(value, down);
    HVX_Vector lost = Q6_V_vxor_VV(Q6_Vw_vasl_VwVw(shifted, down), value);
    return Q6_V_vor_VV(shifted, Q6_Vw_vmin_VwVw(lost, Q6_V_vsplat_R(1)));
}

static inline HVX_Vector hf_add_half(HVX_Vector a, HVX_Vector a_significand, HVX_Vector a_exponent,
                                     HVX_Vector b, HVX_Vector b_significand, HVX_Vector b_exponent)
{
    HVX_Vector zero = Q6_V_vzero();
    HVX_Vector exponent = Q6_Vw_vmax_VwVw(a_exponent, b_exponent);
    HVX_Vector left = hf_aligned(a_significand, Q6_Vw_vsub_VwVw(exponent, a_exponent));
    HVX_Vector right = hf_aligned(b_significand, Q6_Vw_vsub_VwVw(exponent, b_exponent));
    /* a and b are sign-extended: all ones where negative, and x ^ −1 − −1 = −x. */
    HVX_Vector a_negative = Q6_Vw_vasr_VwR(a, 31), b_negative = Q6_Vw_vasr_VwR(b, 31);
    left = Q6_Vw_vsub_VwVw(Q6_V_vxor_VV(left, a_negative), a_negative);
    right = Q6_Vw_vsub_VwVw(Q6_V_vxor_VV(right, b_negative), b_negative);
    HVX_Vector sum = Q6_Vw_vadd_VwVw(left, right);
    HVX_VectorPred nothing = Q6_Q_vcmp_eq_VwVw(sum, zero);
    /* The sum of zeros is negative if both are, that of opposites never. */
    HVX_Vector sign = Q6_V_vmux_QVV(nothing, Q6_V_vand_VV(a_negative, b_negative), sum);
    sign = Q6_V_vand_VV(Q6_Vw_vasr_VwR(sign, 31), Q6_V_vsplat_R(0x8000));
    HVX_Vector scale = Q6_Vw_vsub_VwVw(exponent, Q6_V_vsplat_R(42));
    scale = Q6_V_vmux_QVV(nothing, Q6_V_vsplat_R(-64), scale);
    return Q6_V_vor_VV(hf_round(Q6_Vw_vabs_Vw(sum), scale), sign);
}

static inline vec_hf hf_add(vec_hf a, vec_hf b)
{
    vec_parts left = hf_parts(a), right = hf_parts(b);
    HVX_Vector even = hf_add_half(vec_even(a), vec_even(left.significand), vec_even(left.exponent),
                                  vec_even(b), vec_even(right.significand), vec_even(right.exponent));
    HVX_Vector odd = hf_add_half(vec_odd(a), vec_odd(left.significand), vec_odd(left.exponent),
                                 vec_odd(b), vec_odd(right.significand), vec_odd(right.exponent));
    return Q6_Vh_vshuffe_VhVh(odd, even);
}

static inline vec_hf hf_from_int(HVX_Vector h)
{
    HVX_Vector magnitude = Q6_Vh_vabs_Vh(h);
    HVX_Vector zeros = Q6_Vuh_vcl0_Vuh(magnitude);
    /* The leading bit goes to bit 10, from where it carries into the exponent. */
    HVX_Vector significand =
        Q6_Vh_vasl_VhVh(magnitude, Q6_Vh_vsub_VhVh(zeros, Q6_Vh_vsplat_R(5)));
    HVX_Vector exponent = Q6_Vh_vasl_VhR(Q6_Vh_vsub_VhVh(Q6_Vh_vsplat_R(29), zeros), 10);
    HVX_Vector some =
        Q6_Vh_vsub_VhVh(Q6_V_vzero(), Q6_Vh_vmin_VhVh(magnitude, Q6_Vh_vsplat_R(1)));
    HVX_Vector bits = Q6_Vh_vadd_VhVh(Q6_V_vand_VV(exponent, some), significand);
    return Q6_V_vor_VV(bits, Q6_V_vand_VV(h, Q6_Vh_vsplat_R(0x8000)));
}

#define VEC_LANES(expression)                                                                      \
    vec_sf d;                                                                                      \
    for (int i = 0; i < 32; i++)                                                                   \
        d.lane[i] = expression;                                                                    \
    return d

static inline vec_sf sf_load(const float *from) { return *(const vec_sf *)from; }
static inline void sf_store(float *to, vec_sf x) { *(vec_sf *)to = x; }
static inline vec_sf sf_of_words(HVX_Vector words)
{
    union { HVX_Vector vector; vec_sf numbers; } both = { .vector = words };
    return both.numbers;
}
static inline vec_sf sf_splat(float x) { VEC_LANES(x); }
static inline vec_sf sf_add(vec_sf a, vec_sf b) { VEC_LANES(a.lane[i] + b.lane[i]); }
static inline vec_sf sf_sub(vec_sf a, vec_sf b) { VEC_LANES(a.lane[i] - b.lane[i]); }
static inline vec_sf sf_mul(vec_sf a, vec_sf b) { VEC_LANES(a.lane[i] * b.lane[i]); }
static inline vec_sf sf_max(vec_sf a, vec_sf b) { VEC_LANES(sf_greater(a.lane[i], b.lane[i])); }
static inline vec_sf sf_min(vec_sf a, vec_sf b) { VEC_LANES(sf_lesser(a.lane[i], b.lane[i])); }

static inline vec_sf sf_bits_shl(vec_sf x, uint32_t n)
{
    VEC_LANES(sf_of_bits(sf_to_bits(x.lane[i]) << n));
}
static inline vec_sf sf_bits_add(vec_sf x, uint32_t c)
{
    VEC_LANES(sf_of_bits(sf_to_bits(x.lane[i]) + c));
}
static inline vec_sf sf_bits_from(uint32_t c, vec_sf x)
{
    VEC_LANES(sf_of_bits(c - sf_to_bits(x.lane[i])));
}

#undef VEC_LANES

static inline void hf_widen(vec_hf x, vec_sf *even, vec_sf *odd)
{
    vec_halves halves = { .vector = x };
    for (int i = 0; i < 32; i++) {
        even->lane[i] = hf_to_sf(halves.half[2 * i]);
        odd->lane[i] = hf_to_sf(halves.half[2 * i + 1]);
    }
}

static inline vec_hf hf_narrow(vec_sf even, vec_sf odd)
{
    vec_halves halves;
    for (int i = 0; i < 32; i++) {
        halves.half[2 * i] = hf_of_sf(even.lane[i]);
        halves.half[2 * i + 1] = hf_of_sf(odd.lane[i]);
    }
    return halves.vector;
}

#endif
