/* vec.h on a device, in one of two dialects of its vector unit: qfloat, which every architecture from
 * v68 on has, or IEEE (ESTREAM_IEEE), which takes fewer instructions where it is there.
 *
 * Compiled and counted, and never run: no emulator here has these instructions. Where lanes go when
 * numbers get wider or narrower is as LLVM selects these instructions for its own conversions.
 */
#ifndef ESTREAM_VEC_HVXF_H
#define ESTREAM_VEC_HVXF_H

#include "../numerics.h"

typedef HVX_Vector vec_sf;

#define HF_ONE 0x3c00

static inline vec_sf sf_of_words(HVX_Vector words) { return words; }
static inline vec_sf sf_load(const float *from) { return *(const HVX_Vector *)from; }
static inline void sf_store(float *to, vec_sf x) { *(HVX_Vector *)to = x; }
static inline vec_sf sf_splat(float x) { return Q6_V_vsplat_R((int32_t)sf_to_bits(x)); }

#ifdef ESTREAM_IEEE

static inline vec_hf hf_mul(vec_hf a, vec_hf b) { return Q6_Vhf_vmpy_VhfVhf(a, b); }
static inline vec_hf hf_add(vec_hf a, vec_hf b) { return Q6_Vhf_vadd_VhfVhf(a, b); }
static inline vec_hf hf_sub(vec_hf a, vec_hf b) { return Q6_Vhf_vsub_VhfVhf(a, b); }
static inline vec_sf sf_add(vec_sf a, vec_sf b) { return Q6_Vsf_vadd_VsfVsf(a, b); }
static inline vec_sf sf_sub(vec_sf a, vec_sf b) { return Q6_Vsf_vsub_VsfVsf(a, b); }
static inline vec_sf sf_mul(vec_sf a, vec_sf b) { return Q6_Vsf_vmpy_VsfVsf(a, b); }

static inline void hf_widen(vec_hf x, vec_sf *even, vec_sf *odd)
{
    HVX_VectorPair wide = Q6_Wsf_vmpy_VhfVhf(x, Q6_Vh_vsplat_R(HF_ONE));
    *even = Q6_V_lo_W(wide);
    *odd = Q6_V_hi_W(wide);
}

static inline vec_hf hf_narrow(vec_sf even, vec_sf odd) { return Q6_Vhf_vcvt_VsfVsf(odd, even); }

#else

static inline vec_hf hf_mul(vec_hf a, vec_hf b)
{
    return Q6_Vhf_equals_Vqf16(Q6_Vqf16_vmpy_VhfVhf(a, b));
}
static inline vec_hf hf_add(vec_hf a, vec_hf b)
{
    return Q6_Vhf_equals_Vqf16(Q6_Vqf16_vadd_VhfVhf(a, b));
}
static inline vec_hf hf_sub(vec_hf a, vec_hf b)
{
    return Q6_Vhf_equals_Vqf16(Q6_Vqf16_vsub_VhfVhf(a, b));
}
static inline vec_sf sf_add(vec_sf a, vec_sf b)
{
    return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vadd_VsfVsf(a, b));
}
static inline vec_sf sf_sub(vec_sf a, vec_sf b)
{
    return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vsub_VsfVsf(a, b));
}
static inline vec_sf sf_mul(vec_sf a, vec_sf b)
{
    return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vmpy_VsfVsf(a, b));
}

static inline void hf_widen(vec_hf x, vec_sf *even, vec_sf *odd)
{
    HVX_VectorPair wide = Q6_Wqf32_vmpy_VhfVhf(x, Q6_Vh_vsplat_R(HF_ONE));
    *even = Q6_Vsf_equals_Vqf32(Q6_V_lo_W(wide));
    *odd = Q6_Vsf_equals_Vqf32(Q6_V_hi_W(wide));
}

static inline vec_hf hf_narrow(vec_sf even, vec_sf odd)
{
    HVX_Vector zero = Q6_V_vzero();
    return Q6_Vhf_equals_Wqf32(Q6_W_vcombine_VV(Q6_Vqf32_vadd_VsfVsf(odd, zero),
                                                Q6_Vqf32_vadd_VsfVsf(even, zero)));
}

#endif

/* 1,536 has integers below and above it: adding to its bits adds to the number. */
static inline vec_hf hf_from_int(HVX_Vector h)
{
    HVX_Vector middle = Q6_Vh_vsplat_R(0x6600);
    return hf_sub(Q6_Vh_vadd_VhVh(middle, h), middle);
}

/* sf_rank, lane by lane. */
static inline HVX_Vector sf_ranks(vec_sf x)
{
    return Q6_V_vxor_VV(x, Q6_Vuw_vlsr_VuwR(Q6_Vw_vasr_VwR(x, 31), 1));
}

static inline vec_sf sf_max(vec_sf a, vec_sf b)
{
    return Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(sf_ranks(a), sf_ranks(b)), a, b);
}
static inline vec_sf sf_min(vec_sf a, vec_sf b)
{
    return Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(sf_ranks(b), sf_ranks(a)), a, b);
}

static inline vec_sf sf_bits_shl(vec_sf x, uint32_t n) { return Q6_Vw_vasl_VwR(x, (int32_t)n); }
static inline vec_sf sf_bits_add(vec_sf x, uint32_t c)
{
    return Q6_Vw_vadd_VwVw(x, Q6_V_vsplat_R((int32_t)c));
}
static inline vec_sf sf_bits_from(uint32_t c, vec_sf x)
{
    return Q6_Vw_vsub_VwVw(Q6_V_vsplat_R((int32_t)c), x);
}

#endif
