/* The matrix unit's contract by integer vectors: what mat_sf.c computes number by number, for 32
 * columns at a time. A sum is kept in two vectors, as
 *
 *     sum = value · 2^exponent,   |value| = 24 significant bits · 2^5
 *
 * so that five bits are spare below. A product of two significands of 11 bits, normalised, has 21 or
 * 22 bits; it is moved up by 7. Then either number is below 2^29, and what is shifted out of the
 * smaller one matters only in that it was not zero, which its last bit remembers: no shift long enough
 * to lose a bit leaves a difference so small that more of them would show.
 *
 * Sums of FP16 products are multiples of 2^-48 and far below 2^128: no sum leaves the range of normal
 * binary32 numbers, and nothing here looks whether one does.
 */
#include "../mat.h"
#include "../numerics.h"
#include "../vec.h"

#define TILE 32u
/* The exponent of zero: below that of every number by more than a vector's bits. */
#define ZERO_EXPONENT (-2000)
/* An exponent field of 25 is that of integers. */
#define INTEGER_FIELD 25
#define PRODUCT_SHIFT 7

typedef struct {
    HVX_Vector value, exponent;
} sums;

/* Operands of a tile, for each k a vector of columns. */
struct weights {
    HVX_Vector value[TILE], exponent[TILE];
};

/* One activation. */
struct scalar {
    int32_t value, exponent;
};

/* FP16 in lanes of 32 bits to normalised significands, signed, moved up by 7, and exponents. */
static inline void take_apart(HVX_Vector half, HVX_Vector *value, HVX_Vector *exponent)
{
    HVX_Vector one = Q6_V_vsplat_R(1);
    HVX_Vector field = Q6_V_vand_VV(Q6_Vuw_vlsr_VuwR(half, 10), Q6_V_vsplat_R(31));
    HVX_Vector leading = Q6_Vw_vasl_VwR(Q6_Vw_vmin_VwVw(field, one), 10);
    HVX_Vector bits = Q6_V_vor_VV(Q6_V_vand_VV(half, Q6_V_vsplat_R(0x3ff)), leading);
    /* The leading bit to bit 10 + 7; where there is none, far below everything. */
    HVX_Vector zeros = Q6_Vuw_vcl0_Vuw(bits);
    HVX_Vector up = Q6_Vw_vsub_VwVw(zeros, Q6_V_vsplat_R(31 - 10 - PRODUCT_SHIFT));
    HVX_Vector none = Q6_Vuw_vlsr_VuwR(zeros, 5);
    HVX_Vector negative = Q6_Vw_vasr_VwR(Q6_Vw_vasl_VwR(half, 16), 31);
    HVX_Vector magnitude = Q6_Vw_vasl_VwVw(bits, Q6_Vw_vmin_VwVw(up, Q6_V_vsplat_R(31)));
    *value = Q6_Vw_vsub_VwVw(Q6_V_vxor_VV(magnitude, negative), negative);
    *exponent = Q6_Vw_vsub_VwVw(Q6_Vw_vsub_VwVw(Q6_Vw_vmax_VwVw(field, one), up),
                                Q6_V_vsplat_R(INTEGER_FIELD));
    *exponent = Q6_Vw_vsub_VwVw(*exponent, Q6_Vw_vasl_VwR(none, 11));
}

static void widen(const uint16_t *tile, struct weights *w)
{
    const HVX_Vector *pairs = (const HVX_Vector *)tile;
    HVX_Vector low = Q6_V_vsplat_R(0xffff);
    for (uint32_t k = 0; k < TILE; k += 2) {
        HVX_Vector pair = pairs[k / 2];
        take_apart(Q6_V_vand_VV(pair, low), &w->value[k], &w->exponent[k]);
        take_apart(Q6_Vuw_vlsr_VuwR(pair, 16), &w->value[k + 1], &w->exponent[k + 1]);
    }
}

static inline struct scalar scalar_of(uint32_t half)
{
    int32_t field = (int32_t)(half >> 10 & 31), bits = (int32_t)(half & 0x3ff);
    if (field != 0) {
        bits |= 0x400;
    } else {
        int32_t up = __builtin_clz((uint32_t)bits) - (31 - 10);
        bits <<= up;
        field = 1 - up;
    }
    struct scalar a = { half & 0x8000 ? -bits : bits, field - INTEGER_FIELD };
    return a;
}

/* value · 2^−down, the last bit set if anything was lost. `down` is not negative. */
static inline HVX_Vector shifted(HVX_Vector value, HVX_Vector down)
{
    down = Q6_Vw_vmin_VwVw(down, Q6_V_vsplat_R(31));
    HVX_Vector kept = Q6_Vw_vasr_VwVw(value, down);
    HVX_Vector lost = Q6_Vw_vsub_VwVw(value, Q6_Vw_vasl_VwVw(kept, down));
    return Q6_V_vor_VV(kept, Q6_Vw_vmin_VwVw(lost, Q6_V_vsplat_R(1)));
}

/* sum + a · w, rounded to 24 bits, ties to even. */
static inline sums add(sums sum, struct scalar a, HVX_Vector value, HVX_Vector exponent)
{
    HVX_Vector product = Q6_Vw_vmpyi_VwRh(value, a.value << 16 | (a.value & 0xffff));
    exponent = Q6_Vw_vadd_VwVw(exponent, Q6_V_vsplat_R(a.exponent));
    HVX_Vector most = Q6_Vw_vmax_VwVw(exponent, sum.exponent);
    HVX_Vector total =
        Q6_Vw_vadd_VwVw(shifted(sum.value, Q6_Vw_vsub_VwVw(most, sum.exponent)),
                        shifted(product, Q6_Vw_vsub_VwVw(most, exponent)));
    HVX_Vector negative = Q6_Vw_vasr_VwR(total, 31);
    HVX_Vector magnitude = Q6_Vw_vabs_Vw(total);
    /* The leading bit to bit 30: seven below the last of 24. */
    HVX_Vector zeros = Q6_Vuw_vcl0_Vuw(magnitude);
    HVX_Vector up = Q6_Vw_vsub_VwVw(zeros, Q6_V_vsplat_R(1));
    magnitude = Q6_Vw_vasl_VwVw(magnitude, up);
    HVX_Vector last = Q6_V_vand_VV(Q6_Vuw_vlsr_VuwR(magnitude, 7), Q6_V_vsplat_R(1));
    magnitude = Q6_Vw_vadd_VwVw(Q6_Vw_vadd_VwVw(magnitude, Q6_V_vsplat_R(63)), last);
    magnitude = Q6_Vw_vasl_VwR(Q6_Vuw_vlsr_VuwR(magnitude, 7), 5);
    HVX_Vector none = Q6_Vw_vasl_VwR(Q6_Vuw_vlsr_VuwR(zeros, 5), 11);
    sums next = {
        .value = Q6_Vw_vsub_VwVw(Q6_V_vxor_VV(magnitude, negative), negative),
        /* Up by `up`, then down by 7 − 5. */
        .exponent = Q6_Vw_vsub_VwVw(
            Q6_Vw_vsub_VwVw(Q6_Vw_vadd_VwVw(most, Q6_V_vsplat_R(2)), up), none),
    };
    return next;
}

static inline HVX_Vector to_half(sums sum)
{
    HVX_Vector negative = Q6_V_vand_VV(Q6_Vw_vasr_VwR(sum.value, 31), Q6_V_vsplat_R(0x8000));
    /* 2^29 is a sum that rounding made longer; hf_round takes less. */
    HVX_Vector magnitude = Q6_Vuw_vlsr_VuwR(Q6_Vw_vabs_Vw(sum.value), 5);
    HVX_Vector exponent = Q6_Vw_vadd_VwVw(sum.exponent, Q6_V_vsplat_R(5));
    return Q6_V_vor_VV(hf_round(magnitude, exponent), negative);
}

static inline int is_infinite(uint32_t half)
{
    return (half & 0x7c00u) == 0x7c00u;
}

/* Rows m and m + 1, if there are `both`, of one tile: a vector of elements of the one and the other in
 * turn. Returns which of them have an infinite element, 1 and 2. */
static uint32_t add_tile(const uint16_t *rows, const struct weights *w, int both, sums *even,
                         sums *odd)
{
    sums first = *even, second = *odd;
    uint32_t infinite = 0;
    for (uint32_t k = 0; k < TILE; k++) {
        uint32_t a = rows[2 * k], b = both ? rows[2 * k + 1] : 0;
        infinite |= (is_infinite(a) ? 1u : 0u) | (is_infinite(b) ? 2u : 0u);
        /* Products with zero are zeros, which change no sum that began at +0. */
        if ((a & 0x7fffu) != 0)
            first = add(first, scalar_of(a), w->value[k], w->exponent[k]);
        if ((b & 0x7fffu) != 0)
            second = add(second, scalar_of(b), w->value[k], w->exponent[k]);
    }
    *even = first;
    *odd = second;
    return infinite;
}

/* A row that had an infinite activation has no result. */
static HVX_Vector result(sums sum, uint32_t infinite)
{
    return infinite ? Q6_V_vsplat_R(0x7e00) : to_half(sum);
}

void mat_prepare(void *scales)
{
    (void)scales; /* the unit's columns are not scaled here */
}

static void product(const struct mat_job *job, uint32_t strip, uint32_t row_tile, uint32_t rows,
                    HVX_Vector *out)
{
    struct weights w;
    sums even[TILE / 2], odd[TILE / 2];
    uint32_t pairs = rows / 2 + rows % 2, infinite[TILE / 2];
    for (uint32_t pair = 0; pair < pairs; pair++) {
        even[pair] = (sums){ Q6_V_vzero(), Q6_V_vsplat_R(ZERO_EXPONENT) };
        odd[pair] = even[pair];
        infinite[pair] = 0;
    }
    for (uint32_t k = 0; k < job->k_tiles; k++) {
        widen(job->weights + ((uint64_t)strip * job->k_tiles + k) * MAT_TILE_HALVES, &w);
        const uint16_t *tile =
            job->activations + ((uint64_t)row_tile * job->k_tiles + k) * MAT_TILE_HALVES;
        for (uint32_t pair = 0; pair < pairs; pair++)
            infinite[pair] |= add_tile(tile + 64u * pair, &w, 2 * pair + 1 < rows, &even[pair],
                                       &odd[pair]);
    }
    for (uint32_t pair = 0; pair < pairs; pair++)
        out[pair] = Q6_Vh_vshuffe_VhVh(result(odd[pair], infinite[pair] & 2u),
                                       result(even[pair], infinite[pair] & 1u));
}

void mat_multiply(const void *argument)
{
    const struct mat_job *job = argument;
    HVX_Vector *out = (HVX_Vector *)job->out;
    for (uint32_t strip = 0; strip < job->strips; strip++) {
        for (uint32_t row = 0; row < job->rows; row += TILE) {
            uint32_t rows = job->rows - row < TILE ? job->rows - row : TILE;
            product(job, strip, row / TILE, rows, out);
            out += 16;
        }
    }
}
