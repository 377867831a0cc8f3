/* Constants of the expert kernel for one shape class. Written by `estream kernels`; not to be edited.
 *
 *     hidden 2048, ff 1024; gate, up and down in q4_0.t32.direct
 *     Hexagon v79, 8388608 bytes of VTCM that begin with a bank, of which 8331520 are used:
 *
 *            0  z, 5111808 bytes
 *      5111808  h, 2555904 bytes
 *      7667712  d[0], 131072 bytes
 *      7798784  d[1], 131072 bytes
 *      7929856  o[0], 79872 bytes
 *      8009728  o[1], 79872 bytes
 *      8089600  o[2], 79872 bytes
 *      8169472  o[3], 79872 bytes
 *      8249344  scales, 256 bytes
 *      8249600  c[0], 40960 bytes
 *      8290560  c[1], 40960 bytes
 */
#ifdef ESTREAM_TEMPLATE_H
#error "a translation unit has one template"
#endif
#define ESTREAM_TEMPLATE_H

#if defined(__HEXAGON_ARCH__) && __HEXAGON_ARCH__ != 79
#error "this template is for v79"
#endif

#include "abi.h"

/* An expert record. */
#define ESTREAM_TEMPLATE_HIDDEN 2048u
#define ESTREAM_TEMPLATE_FF 1024u
#define ESTREAM_TEMPLATE_GATE ESTREAM_Q4_0_DIRECT
#define ESTREAM_TEMPLATE_UP ESTREAM_Q4_0_DIRECT
#define ESTREAM_TEMPLATE_DOWN ESTREAM_Q4_0_DIRECT

/* Bytes from tile to tile of a strip in VTCM. */
#define ESTREAM_TEMPLATE_GATE_TILE_BYTES 640u
#define ESTREAM_TEMPLATE_UP_TILE_BYTES 640u
#define ESTREAM_TEMPLATE_DOWN_TILE_BYTES 640u

/* Bytes of a bank of VTCM, which no range of operand tiles leaves. */
#define ESTREAM_TEMPLATE_BANK_BYTES 4194304u

/* What one descriptor of the DMA engine moves at most. */
#define ESTREAM_DMA_MAX_BYTES 16777215u
#define ESTREAM_DMA_MAX_ROWS 65535u
#define ESTREAM_DMA_MAX_ROW_BYTES 16777215u
#define ESTREAM_DMA_MAX_STRIDE 16777215u

static const struct estream_plan estream_template_plan = {
    .rows = 1248u,
    .gate_up_strips = 1u,
    .down_strips = 1u,
    .vtcm_bytes = 8388608u,
    .z = 0u,
    .h = 5111808u,
    .c = {8249600u, 8290560u},
    .d = {7667712u, 7798784u},
    .o = {7929856u, 8009728u, 8089600u, 8169472u},
    .scales = 8249344u,
};
