/* Vectors of numbers: 64 FP16 (`vec_hf`) or 32 binary32 (`vec_sf`), the same names in every build.
 *
 *     hf_mul(a, b), hf_add(a, b)         FP16
 *     hf_from_int(h)                     64 int16 of −256 … 256, exactly
 *     hf_widen(x, &even, &odd)           even lanes and odd lanes as binary32, exactly
 *     hf_narrow(even, odd)               and back, rounded: lane 2i of even[i], 2i + 1 of odd[i]
 *     sf_load(p), sf_store(p, x)         128 aligned bytes
 *     sf_of_words(v)                     the numbers whose bits are the 32 words of v
 *     sf_splat(f), sf_add, sf_sub, sf_mul, sf_max, sf_min
 *     sf_bits_shl(x, n)                  the bits of each lane, shifted left
 *     sf_bits_add(x, c)                  and c added to them
 *     sf_bits_from(c, x)                 c minus them
 *
 * docs/hexagon-numerics.md says how each rounds where it is not a device that computes. On a
 * device there are two dialects of instructions, qfloat and IEEE; results there are near these, and
 * not the same bits.
 */
#ifndef ESTREAM_VEC_H
#define ESTREAM_VEC_H

#include "hvx.h"

typedef HVX_Vector vec_hf;

#ifdef ESTREAM_DEVICE
#include "device/vec_hvxf.h"
#else
#include "emulated/vec_int.h"
#endif

#endif
