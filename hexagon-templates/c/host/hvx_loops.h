/* HVX on a machine that has none: each name does to arrays what its instruction does to lanes. */
#ifndef ESTREAM_HVX_LOOPS_H
#define ESTREAM_HVX_LOOPS_H

typedef union {
    uint8_t ub[128];
    int8_t b[128];
    uint16_t uh[64];
    int16_t h[64];
    uint32_t uw[32];
    int32_t w[32];
} __attribute__((aligned(128))) HVX_Vector;

typedef struct {
    HVX_Vector v[2]; /* low, high */
} HVX_VectorPair;

/* All ones or all zeros in each lane. */
typedef struct {
    HVX_Vector v;
} HVX_VectorPred;

#define HVX_LANES(count, expression)                                                               \
    HVX_Vector d;                                                                                  \
    for (int i = 0; i < (count); i++)                                                              \
        expression;                                                                                \
    return d

static inline HVX_Vector Q6_V_vsplat_R(int32_t r) { HVX_LANES(32, d.w[i] = r); }
static inline HVX_Vector Q6_Vh_vsplat_R(int32_t r) { HVX_LANES(64, d.h[i] = (int16_t)r); }
static inline HVX_Vector Q6_V_vzero(void) { HVX_LANES(32, d.w[i] = 0); }

static inline HVX_Vector Q6_V_vand_VV(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = a.uw[i] & b.uw[i]); }
static inline HVX_Vector Q6_V_vor_VV(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = a.uw[i] | b.uw[i]); }
static inline HVX_Vector Q6_V_vxor_VV(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = a.uw[i] ^ b.uw[i]); }

static inline HVX_Vector Q6_Vw_vadd_VwVw(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = a.uw[i] + b.uw[i]); }
static inline HVX_Vector Q6_Vw_vsub_VwVw(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = a.uw[i] - b.uw[i]); }
static inline HVX_Vector Q6_Vh_vadd_VhVh(HVX_Vector a, HVX_Vector b) { HVX_LANES(64, d.uh[i] = (uint16_t)(a.uh[i] + b.uh[i])); }
static inline HVX_Vector Q6_Vh_vsub_VhVh(HVX_Vector a, HVX_Vector b) { HVX_LANES(64, d.uh[i] = (uint16_t)(a.uh[i] - b.uh[i])); }

static inline HVX_Vector Q6_Vw_vmax_VwVw(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.w[i] = a.w[i] > b.w[i] ? a.w[i] : b.w[i]); }
static inline HVX_Vector Q6_Vw_vmin_VwVw(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.w[i] = a.w[i] < b.w[i] ? a.w[i] : b.w[i]); }
static inline HVX_Vector Q6_Vh_vmax_VhVh(HVX_Vector a, HVX_Vector b) { HVX_LANES(64, d.h[i] = a.h[i] > b.h[i] ? a.h[i] : b.h[i]); }
static inline HVX_Vector Q6_Vh_vmin_VhVh(HVX_Vector a, HVX_Vector b) { HVX_LANES(64, d.h[i] = a.h[i] < b.h[i] ? a.h[i] : b.h[i]); }
static inline HVX_Vector Q6_Vh_vabs_Vh(HVX_Vector a) { HVX_LANES(64, d.uh[i] = (uint16_t)(a.h[i] < 0 ? 0u - a.uh[i] : a.uh[i])); }
static inline HVX_Vector Q6_Vw_vabs_Vw(HVX_Vector a) { HVX_LANES(32, d.uw[i] = a.w[i] < 0 ? 0u - a.uw[i] : a.uw[i]); }

/* Shifts by a register. */
static inline HVX_Vector Q6_Vw_vasl_VwR(HVX_Vector a, int32_t r) { HVX_LANES(32, d.uw[i] = a.uw[i] << (r & 31)); }
static inline HVX_Vector Q6_Vw_vasr_VwR(HVX_Vector a, int32_t r) { HVX_LANES(32, d.w[i] = a.w[i] >> (r & 31)); }
static inline HVX_Vector Q6_Vuw_vlsr_VuwR(HVX_Vector a, int32_t r) { HVX_LANES(32, d.uw[i] = a.uw[i] >> (r & 31)); }
static inline HVX_Vector Q6_Vh_vasl_VhR(HVX_Vector a, int32_t r) { HVX_LANES(64, d.uh[i] = (uint16_t)(a.uh[i] << (r & 15))); }
static inline HVX_Vector Q6_Vuh_vlsr_VuhR(HVX_Vector a, int32_t r) { HVX_LANES(64, d.uh[i] = (uint16_t)(a.uh[i] >> (r & 15))); }
static inline HVX_Vector Q6_Vub_vlsr_VubR(HVX_Vector a, int32_t r) { HVX_LANES(128, d.ub[i] = (uint8_t)(a.ub[i] >> (r & 7))); }

/* Shifts by a vector: the low 6 (words) or 5 (halves) bits, signed; a negative count shifts the
 * other way. */
static inline int32_t hvx_count(uint32_t count, int bits)
{
    return (int32_t)(count << (32 - bits)) >> (32 - bits);
}
static inline uint32_t hvx_shift(uint32_t value, int32_t left, uint32_t width)
{
    if (left >= 0)
        return left < (int32_t)width ? value << left : 0;
    return -left < (int32_t)width ? value >> -left : 0;
}
static inline HVX_Vector Q6_Vw_vasl_VwVw(HVX_Vector a, HVX_Vector b)
{
    HVX_LANES(32, {
        int32_t n = hvx_count(b.uw[i], 6);
        d.uw[i] = n >= 0 ? hvx_shift(a.uw[i], n, 32) : (uint32_t)(a.w[i] >> (n < -31 ? 31 : -n));
    });
}
static inline HVX_Vector Q6_Vw_vlsr_VwVw(HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = hvx_shift(a.uw[i], -hvx_count(b.uw[i], 6), 32)); }
static inline HVX_Vector Q6_Vh_vasl_VhVh(HVX_Vector a, HVX_Vector b)
{
    HVX_LANES(64, {
        int32_t n = hvx_count(b.uh[i], 5);
        d.uh[i] = (uint16_t)(n >= 0 ? hvx_shift(a.uh[i], n, 16) : (uint32_t)(a.h[i] >> (n < -15 ? 15 : -n)));
    });
}
static inline HVX_Vector Q6_Vh_vlsr_VhVh(HVX_Vector a, HVX_Vector b) { HVX_LANES(64, d.uh[i] = (uint16_t)hvx_shift(a.uh[i], -hvx_count(b.uh[i], 5), 16)); }

static inline HVX_Vector Q6_Vuw_vcl0_Vuw(HVX_Vector a) { HVX_LANES(32, d.uw[i] = a.uw[i] ? (uint32_t)__builtin_clz(a.uw[i]) : 32u); }
static inline HVX_Vector Q6_Vuh_vcl0_Vuh(HVX_Vector a) { HVX_LANES(64, d.uh[i] = a.uh[i] ? (uint16_t)(__builtin_clz(a.uh[i]) - 16) : 16u); }

static inline HVX_VectorPred Q6_Q_vcmp_gt_VwVw(HVX_Vector a, HVX_Vector b)
{
    HVX_VectorPred q;
    for (int i = 0; i < 32; i++)
        q.v.w[i] = a.w[i] > b.w[i] ? -1 : 0;
    return q;
}
static inline HVX_VectorPred Q6_Q_vcmp_eq_VwVw(HVX_Vector a, HVX_Vector b)
{
    HVX_VectorPred q;
    for (int i = 0; i < 32; i++)
        q.v.w[i] = a.w[i] == b.w[i] ? -1 : 0;
    return q;
}
static inline HVX_Vector Q6_V_vmux_QVV(HVX_VectorPred q, HVX_Vector a, HVX_Vector b) { HVX_LANES(32, d.uw[i] = (a.uw[i] & q.v.uw[i]) | (b.uw[i] & ~q.v.uw[i])); }

static inline HVX_Vector Q6_V_lo_W(HVX_VectorPair w) { return w.v[0]; }
static inline HVX_Vector Q6_V_hi_W(HVX_VectorPair w) { return w.v[1]; }
static inline HVX_VectorPair Q6_W_vcombine_VV(HVX_Vector high, HVX_Vector low)
{
    HVX_VectorPair w = { .v = { low, high } };
    return w;
}

/* Even lanes to the low vector, odd lanes to the high one. */
static inline HVX_VectorPair Q6_Wuw_vmpy_VuhVuh(HVX_Vector a, HVX_Vector b)
{
    HVX_VectorPair w;
    for (int i = 0; i < 32; i++) {
        w.v[0].uw[i] = (uint32_t)a.uh[2 * i] * b.uh[2 * i];
        w.v[1].uw[i] = (uint32_t)a.uh[2 * i + 1] * b.uh[2 * i + 1];
    }
    return w;
}
/* Even halves of b and of a, alternating. */
static inline HVX_Vector Q6_Vh_vshuffe_VhVh(HVX_Vector a, HVX_Vector b)
{
    HVX_LANES(32, (d.uh[2 * i] = b.uh[2 * i], d.uh[2 * i + 1] = a.uh[2 * i]));
}
/* Bytes to halves in order. */
static inline HVX_VectorPair Q6_Wuh_vunpack_Vub(HVX_Vector a)
{
    HVX_VectorPair w;
    for (int i = 0; i < 128; i++)
        w.v[i / 64].uh[i % 64] = a.ub[i];
    return w;
}
static inline HVX_VectorPair Q6_Wh_vunpack_Vb(HVX_Vector a)
{
    HVX_VectorPair w;
    for (int i = 0; i < 128; i++)
        w.v[i / 64].h[i % 64] = a.b[i];
    return w;
}
/* The two halves of a vector, byte by byte in turn. */
static inline HVX_Vector Q6_Vb_vshuff_Vb(HVX_Vector a)
{
    HVX_LANES(64, (d.ub[2 * i] = a.ub[i], d.ub[2 * i + 1] = a.ub[i + 64]));
}
/* For each bit of r, from the least, elements of so many bytes are exchanged between the two. */
static inline HVX_VectorPair Q6_W_vshuff_VVR(HVX_Vector high, HVX_Vector low, int32_t r)
{
    for (int offset = 1; offset < 128; offset <<= 1) {
        if (!(r & offset))
            continue;
        for (int k = 0; k < 128; k++) {
            if (!(k & offset)) {
                uint8_t byte = high.ub[k];
                high.ub[k] = low.ub[k + offset];
                low.ub[k + offset] = byte;
            }
        }
    }
    return Q6_W_vcombine_VV(high, low);
}
/* The inverse: elements of so many bytes are parted, the even ones to the low vector. */
static inline HVX_VectorPair Q6_W_vdeal_VVR(HVX_Vector high, HVX_Vector low, int32_t r)
{
    for (int offset = 64; offset > 0; offset >>= 1) {
        if (!(r & offset))
            continue;
        for (int k = 0; k < 128; k++) {
            if (!(k & offset)) {
                uint8_t byte = high.ub[k];
                high.ub[k] = low.ub[k + offset];
                low.ub[k + offset] = byte;
            }
        }
    }
    return Q6_W_vcombine_VV(high, low);
}
/* The table's entry i is the low half of its word i; the index is the low four bits of a byte.
 * Entries of even bytes go to the low vector. */
static inline HVX_VectorPair Q6_Wh_vlut16_VbVhR_nomatch(HVX_Vector index, HVX_Vector table, int32_t r)
{
    HVX_VectorPair w;
    int odd = r >> 4 & 1, high = r << 4 & 0x10;
    for (int i = 0; i < 128; i++)
        w.v[i & 1].uh[i >> 1] = table.uh[2 * ((index.ub[i] & 15) | high) + odd];
    return w;
}

#undef HVX_LANES

#endif
